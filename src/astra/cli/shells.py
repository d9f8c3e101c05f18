"""Completion for the shells people use, written out from the grammar: no command is run while somebody types."""

from __future__ import annotations

from astra.cli.grammar import Option, Verb, names, verbs
from astra.files import own_text


def _filled(name: str, **words: str) -> str:
    """A text of ``data`` with words in their places."""
    text = own_text(__file__, name)
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def bash() -> str:
    """A function for bash; file names where a file is taken, and GPUs behind their number."""
    cases = "\n".join(_bash_verb(verb) for verb in verbs())
    listed = " ".join(verb.name for verb in verbs())
    gpus = " ".join(names()["gpus"])
    return _filled("completion.bash", VERBS=listed, CASES=cases, GPUS=gpus)


def _bash_verb(verb: Verb) -> str:
    flags = [name for option in verb.options for name in option.names]
    lines = [f"        {verb.name})", f'            options="{" ".join(flags)}"', '            case "$prev" in']
    taking = [option for option in verb.options if option.names and option.metavar]
    lines += [f"                {'|'.join(option.names)}) {_bash_value(option)} ;;" for option in taking]
    free = [option for option in verb.options if not option.names]
    other = _bash_value(free[0]) if free else ":"
    lines.append(f'                *) if [[ "$cur" != -* ]]; then {other}; fi ;;')
    return "\n".join([*lines, "            esac ;;"])


def _bash_value(option: Option) -> str:
    """What follows an option: words, files, both, or nothing that is known."""
    parts = []
    if option.catalog == "gpus":
        parts.append('words="@gpus"')
    elif words := _words(option):
        parts.append(f'words="{" ".join(words)}"')
    if option.files:
        parts.append("files=1")
    return "; ".join([*parts, 'options=""'])


def _words(option: Option) -> tuple[str, ...]:
    return option.words or (names()[option.catalog] if option.catalog else ())


def zsh() -> str:
    """A function for zsh, with what each option is for beside it."""
    listed = "\n".join(f"        {_zsh_quoted(f'{_colon(verb.name)}:{verb.help}')}" for verb in verbs())
    cases = "\n".join(_zsh_verb(verb) for verb in verbs())
    return _filled("completion.zsh", VERBS=listed, CASES=cases, GPUS=",".join(names()["gpus"]))


def _colon(words: str) -> str:
    return words.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_quoted(words: str) -> str:
    return "'" + words.replace("'", "'\\''") + "'"


def _zsh_verb(verb: Verb) -> str:
    lines = [f"        {verb.name})", "            _arguments -s \\"]
    free = 0
    for option in verb.options:
        message = _colon(option.metavar)
        if not option.names:
            free += 1
            lines.append(f"                {_zsh_quoted(f'{free}:{message}:{_zsh_action(option)}')} \\")
            continue
        meaning = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
        for name in option.names:
            value = f":{message}:{_zsh_action(option)}" if option.metavar else ""
            lines.append(f"                {_zsh_quoted(f'*{name}[{meaning}]{value}')} \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join([*lines, "            ;;"])


def _zsh_action(option: Option) -> str:
    if option.catalog == "gpus":
        return "_astra_gpus"
    words = f"({' '.join(_words(option))})" if _words(option) else ""
    if words and option.files:
        return f'{{_alternative "names:name:{words}" "files:file:_files"}}'
    return "_files" if option.files else words or " "


def fish() -> str:
    """Lines for fish, with what each option is for beside it."""
    lines = ["# fish completion for astra: save it as ~/.config/fish/completions/astra.fish", "complete -c astra -f"]
    for verb in verbs():
        lines.append(f"complete -c astra -n __fish_use_subcommand -a {verb.name} -d {_fish(verb.help)}")
        lines += [line for option in verb.options for line in _fish_option(verb.name, option)]
    return "\n".join(lines) + "\n"


def _fish(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(verb: str, option: Option) -> list[str]:
    start = f"complete -c astra -n '__fish_seen_subcommand_from {verb}'"
    words = " ".join(_words(option))
    if option.catalog == "gpus":
        words = f"(string match -r '^[0-9]+x' -- (commandline -ct); or echo 8x){{{','.join(names()['gpus'])}}}"
    parts = f" -a {_fish(words)}" if words else ""
    parts += " -F" if option.files else ""
    if not option.names:
        return [start + parts] if parts else []
    flags = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
    needs = " -r" if option.metavar else ""
    return [f"{start}{flags}{needs}{parts} -d {_fish(option.help)}"]
