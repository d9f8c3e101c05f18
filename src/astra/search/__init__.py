"""From a request to its plans: which module does what, in the order in which a newcomer reads them.

One pool:

    world      the facts of a request: every name looked up, every default filled in
    one_pool   ``plan`` and ``estimate``: what is asked of the modules below, and the answer made of it
    ranked     the best strategies of a job: each attempt searched, its layers dealt, costed in full, ranked
    attempts   what is searched: the usual words of the runtime (``words``), and what may be better or has more room
    engine     one search, best first: ``space`` has the rows, ``bounds`` what none is below, ``settle`` simulates
    splits     layers over stages by the simulated step; ``plainer`` as plain as is no worse
    detail     one strategy in full, with ``cautions``; ``timeline`` span by span
    ledger     the account in words; ``nearby`` and ``lost`` answer what was not asked

Any number of GPUs of one type, for goals of money and for rent:

    counts     the best strategy of every number of nodes together; ``blocks`` so many at a time that they have room
    least, floors, degrees, doubts    what no strategy of a number of GPUs is below
    offers     all offers: the front of time against money; ``most`` the most steps; ``budget`` the GPUs one has
    front      choices as simulated, with their bills

Several pools: ``search.fleet``.
"""
