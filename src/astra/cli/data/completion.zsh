#compdef astra
# zsh completion for astra: save it as _astra in a folder of $fpath
_astra_gpus() {
    local count="${PREFIX%%x*}"
    [[ "$count" == <-> ]] || count=8
    compadd -- ${count}x{@GPUS@}
}
_astra() {
    local context state state_descr line
    local -a verbs
    typeset -A opt_args
    verbs=(
@VERBS@
    )
    if (( CURRENT == 2 )); then
        _describe -t verbs 'verb' verbs
        return
    fi
    local verb="$words[2]"
    shift words
    (( CURRENT-- ))
    case "$verb" in
@CASES@
    esac
}
if [ "$funcstack[1]" = "_astra" ]; then _astra "$@"; else compdef _astra astra; fi
