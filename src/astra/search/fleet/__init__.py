"""Several pools: pipelines across them and groups beside one another.

In the order in which a newcomer reads them:

    plan       ``plan`` and ``estimate``; ``goals`` of money, ``sites`` with lines, ``worth`` of pools, ``runtimes``
    pools      who may take part, each with its job; ``spread`` puts a plain strategy on them
    search     one search: pipelines over pools, groups beside one another, or both; ``least`` what none is below
    space      pipelines: ``frames`` (what all stages share), ``bounds`` of them, each solved by ``astra.partition``
    menus      groups of one pool; ``dealing`` and ``sharing`` share the batch among groups, ``shared`` the state too
    small, making, few    fleets so small that more can be looked at
    detail     one strategy in full, ``summary`` its record (``records``), ``bill`` its cost, ``timeline`` its spans
"""
