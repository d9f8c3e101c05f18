# bash completion for astra: source it, or save it as ~/.local/share/bash-completion/completions/astra
_astra() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"
    local options="" words="" files=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -le 1 ]; then
        COMPREPLY=($(compgen -W "@VERBS@ --help --version" -- "$cur"))
        return
    fi
    case "$verb" in
@CASES@
        *) return ;;
    esac
    if [ "$words" = "@gpus" ]; then
        local count="${cur%%x*}"
        [[ "$count" =~ ^[0-9]+$ ]] || count=8
        words="$(printf "${count}x%s " @GPUS@)"
    fi
    if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$cur"))
    elif [ -n "$files" ]; then COMPREPLY=($(compgen -f -- "$cur"))
    elif [ -n "$options" ]; then COMPREPLY=($(compgen -W "$options" -- "$cur"))
    fi
    if [ -n "$words" ] && [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$cur")); fi
}
complete -o filenames -F _astra astra
