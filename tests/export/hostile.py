"""Names that would run, break or hide something if they were ever taken for syntax."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = (
    "$(touch PWNED)",
    "`touch PWNED`",
    "a; touch PWNED #",
    "a' ; touch PWNED ; '",
    'a" ; touch PWNED ; "',
    "a\ntouch PWNED\n",
    "a\r\ntouch PWNED",
    "a\\\ntouch PWNED",
    "${IFS}touch${IFS}PWNED",
    "a && touch PWNED",
    "a | touch PWNED",
    "END_OF_FILE_0\ntouch PWNED",
    "'''\nimport os; os.system('touch PWNED')\n'''",
    '"""\nimport os; os.system("touch PWNED")\n"""',
    "a: {b: [c",
    "- a\n- b",
    "# comment",
    "yes",
    "1e3",
    "null",
    "|\n  text",
    "!!python/object/apply:os.system ['touch PWNED']",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "-rf /",
    "\u2028touch PWNED",
    "\x85touch PWNED",
    "\x1b[2Jgone",
    "\u202egnp.exe",
    "a\tb",
    "ünïcödé 模型 🚀",
    " ",
)
