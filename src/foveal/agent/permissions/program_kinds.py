"""Kinds of programs: always asked, never allowed by first words, not harmless in a sandbox.

A program is known by the first word of a command and by the file that it stands for; see
`foveal.config.project.code_runners`.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.config.project.code_runners import (
    BUILDERS,
    COMMAND_SHELLS,
    INTERPRETERS,
    MULTI_CALL_PROGRAMS,
    PACKAGE_MANAGERS,
    STARTERS,
    names,
    program_names,
)

MIN_PREFIX_WORDS: Final = 2

# ── Lists ────────────────────────────────────────────────────────────────────────────────────────────────


ALWAYS_ASKED: Final = names(
    """
    . : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown
    enable eval exec exit export fc fg getopts hash help history jobs kill let local logout mapfile popd printf
    pushd read readarray readonly return set shift shopt source suspend test times trap type typeset ulimit umask
    unalias unset wait
    ! [[ ]] case coproc do done elif else esac fi for function if in select then time until while { }
    """
)
"""Commands of bash itself, and its keywords. They change the shell for the commands after them in the line
(`hash -p`, `printf -v`), or evaluate their words (`test -v`, `[ -v`). `echo`, `false`, `pwd` and `true` do
neither."""
_DELETERS: Final = names(
    """
    dd mv prename rename rimraf rm rmdir shred srm trash trash-put truncate unlink wipe
    """
)
_OVERWRITERS: Final = names(
    """
    ar cp csplit ditto fallocate install ln mkfs objcopy patch ranlib rsync split sponge strip tee
    """
)
_ARCHIVERS: Final = names(
    """
    7z 7za 7zr 7zz brotli bsdtar bunzip bzip compress cpio dtrx gtar gunzip gzip jar lbzip lz lzip lzma lzop pax
    pbzip pigz rar tar unar uncompress unlzma unrar unxz unzip unzstd xz zip zstd
    """
)
_NETWORK_PROGRAMS: Final = names(
    """
    ansible ansible-playbook aria aria2c aws az curl dig docker docker-compose doctl eb fetch firebase flyctl
    ftp gcloud gh glab gsutil helm heroku host hub kubectl lftp lynx mail mailx minikube mosh nc ncat netcat
    netlify nmap nslookup oc openssl ping podman pulumi rclone s3cmd scp sendmail serverless sftp skopeo
    smbclient socat ssh ssh-add ssh-copy-id ssh-keygen svn telnet terraform tofu twine vagrant vercel w3m wget
    wrangler xh
    """
)
_PRIVILEGES: Final = names(
    """
    apparmor_parser chattr chgrp chmod chown chsh doas gpasswd insmod iptables kill killall launchctl loginctl
    modprobe mount newgrp nft passwd pkexec pkill reboot service setcap setfacl shutdown skill su sudo sysctl
    systemctl umount useradd userdel usermod visudo
    """
)
_EDITORS: Final = names("ed emacs ex nano nvim vi view vim")
_NOT_HARMLESS: Final = (
    _DELETERS
    | _OVERWRITERS
    | _EDITORS
    | _NETWORK_PROGRAMS
    | _PRIVILEGES
    | MULTI_CALL_PROGRAMS
    | names("git-lfs hg jj svn")
)
NEVER_BY_PREFIX: Final = (
    _NOT_HARMLESS
    | COMMAND_SHELLS
    | INTERPRETERS
    | STARTERS
    | BUILDERS
    | PACKAGE_MANAGERS
    | _ARCHIVERS
    | names("fd fdfind find")
)
"""Programs that delete, overwrite, publish, fetch, interpret or start other programs."""

_PROGRAM_STARTERS: Final = (
    STARTERS
    | COMMAND_SHELLS
    | INTERPRETERS
    | MULTI_CALL_PROGRAMS
    | names("doas fd fdfind find npx pkexec poetry pipenv su sudo uv uvx")
)

_GIT_READING: Final = names(
    """
    blame cat-file count-objects describe diff grep log ls-files ls-tree merge-base name-rev rev-list rev-parse
    shortlog show show-ref status whatchanged
    """
)
_GIT_LOCAL: Final = names("add commit init")
_GIT_SHOWN_OPTIONS: Final = names(
    """
    --abbrev-commit --all --branch --cached --date-order --decorate --first-parent --graph --ignored --merges
    --name-only --name-status --no-color --no-merges --numstat --oneline --patch --porcelain --raw --reverse
    --short --shortstat --show-toplevel --staged --stat --summary --tags --untracked-files --word-diff -b -l -n
    -p -s -u -v
    """
)
"""Options of git's reading commands that only change what is printed."""
_GIT_STARTING_OPTIONS: Final = ("--exe", "--ext", "--op", "--ou", "--textc")
"""Options of git that write a file or start a program, by how they begin: git accepts abbreviations."""
_GIT_PAGER_OPTION: Final = re.compile(r"-[A-Za-z]*O")
_FIND_ACTIONS: Final = ("-delete", "-exec", "-ok", "-fls", "-fprint")
_BUILD_COMMANDS: Final = names("bench build check clippy doc fmt format lint run test vet version")
"""Subcommands of package managers that build or test."""
_RUNNERS: Final = names("conda hatch mamba micromamba pdm pipenv pixi poetry rye uv")
"""Package managers whose `run` starts any program."""
_PLAIN_STARTERS: Final = names("env nice nohup setsid")
"""Starters after which the command follows, if they have no options."""
_READERS: Final = names(
    "basename cat cksum cut dirname du echo file grep egrep fgrep head ls nl stat tail wc"
)
"""Programs that only print, whatever words `xargs` adds."""
_DURATION: Final = re.compile(r"\d+(?:\.\d+)?[smhd]?")

_WRITING_OPTIONS: Final[dict[str, re.Pattern[str]]] = {
    "sed": re.compile(r"-[^ef-]*i|--i"),
    "perl": re.compile(r"-[^eEIMmDV-]*i"),
    "ruby": re.compile(r"-[^CeEFIKrTWx-]*i"),
    "awk": re.compile(r".*inplace"),
    "gawk": re.compile(r".*inplace"),
    "yq": re.compile(r"-[A-Za-z]*i|--in"),
    "clang-format": re.compile(r"--?i"),
    "sort": re.compile(r"-[^-]*o|--o|--co"),
    "shuf": re.compile(r"-[^-]*o|--o"),
    "iconv": re.compile(r"-[^-]*o|--o"),
    "tree": re.compile(r"-[^-]*o|--o"),
    "xmllint": re.compile(r"--?o"),
    "find": re.compile("|".join(_FIND_ACTIONS)),
    "fd": re.compile(r"-[^-]*[xX]|--exec"),
    "fdfind": re.compile(r"-[^-]*[xX]|--exec"),
    "rg": re.compile(r"--pre(?!tty)|--hostname-bin"),
}
"""Options that change a file in place, write the output to a file, or start a program, also combined with others
(`-Ei`)."""
_LISTINGS: Final[dict[str, re.Pattern[str]]] = {
    **dict.fromkeys(("tar", "gtar", "bsdtar"), re.compile(r"-?[vfzjJ]*t[tvfzjJ]*")),
    **dict.fromkeys(("bzip", "gzip", "lz", "lzma", "pigz", "xz", "zstd"), re.compile(r"-[lt]|-c|-dc|-cd")),
    **dict.fromkeys(("7z", "7za", "7zr", "7zz"), re.compile(r"[lt]")),
    "unzip": re.compile(r"-[lvZtp]"),
}
"""The first argument with which an archiver only reads."""
_TWO_FILES: Final = names("uniq xxd")
"""Programs that write to their second file."""


# ── Questions about a command ────────────────────────────────────────────────────────────────────────────


def is_always_asked(words: tuple[str, ...]) -> bool:
    """Return whether the command is one of bash itself that no rule can cover."""
    return words[0] in ALWAYS_ASKED


def starts_programs(words: tuple[str, ...]) -> bool:
    """Return whether the words of a command can name further programs to run (`env`, `bash -c`, `find -exec`)."""
    return bool(program_names(words[0]) & _PROGRAM_STARTERS)


def can_be_prefix(words: tuple[str, ...], program: str = "") -> bool:
    """Return whether commands that begin with these words can be allowed."""
    known = program_names(words[0], program)
    if len(words) < MIN_PREFIX_WORDS or is_always_asked(words) or known & NEVER_BY_PREFIX:
        return False
    if any(name.startswith("git-") for name in known):
        return False
    return "git" not in known or words[1] in _GIT_READING


def may_follow_prefix(prefix: tuple[str, ...], word: str) -> bool:
    """Return whether a word after a prefix is covered: arguments are, options are not (`--output=FILE`), except
    options of git that only change what is printed."""
    if not word.startswith("-"):
        return True
    if "git" not in program_names(prefix[0]):
        return False
    return word in _GIT_SHOWN_OPTIONS or re.fullmatch(r"-\d+", word) is not None


# ── Harmless in a sandbox ────────────────────────────────────────────────────────────────────────────────


def is_harmless(words: tuple[str, ...], program: str = "") -> bool:
    """Return whether a command in the sandbox needs no question: it neither deletes, overwrites, publishes, fetches
    nor changes privileges. Interpreters, builds and test runners are harmless there."""
    if not words or not words[0] or words[0].startswith("-") or is_always_asked(words):
        return False
    known = program_names(words[0], program)
    if known & _NOT_HARMLESS or any(name.startswith("git-") for name in known):
        return False
    if "git" in known:
        return _is_harmless_git(words[1:])
    if known & STARTERS:
        return _starts_harmless(known, words[1:])
    if known & COMMAND_SHELLS:
        # A shell without a script runs what it reads, or the word after an option.
        return len(words) > 1 and not words[1].startswith(("-", "+"))
    if known & PACKAGE_MANAGERS:
        return _builds_only(known, words[1:])
    if known & _ARCHIVERS:
        return _only_lists(known, words[1:])
    return not _writes_files(known, words[1:])


def _starts_harmless(known: frozenset[str], words: tuple[str, ...]) -> bool:
    """Return whether a starter without options starts a harmless command. Of most starters it is not known where
    the command begins."""
    if "timeout" in known:
        return bool(words) and bool(_DURATION.fullmatch(words[0])) and is_harmless(words[1:])
    if "xargs" in known:
        return bool(words) and bool(program_names(words[0]) & _READERS) and not _has_options(words)
    if not words:
        return "env" in known  # it prints the environment
    return bool(known & _PLAIN_STARTERS) and "=" not in words[0] and is_harmless(words)


def _builds_only(known: frozenset[str], words: tuple[str, ...]) -> bool:
    if not words or words[0] not in _BUILD_COMMANDS:
        return False
    return words[0] != "run" or not known & _RUNNERS or is_harmless(words[1:])


def _only_lists(known: frozenset[str], words: tuple[str, ...]) -> bool:
    pattern = next((_LISTINGS[name] for name in known if name in _LISTINGS), None)
    is_listing = pattern is not None and bool(words) and pattern.fullmatch(words[0]) is not None
    return is_listing and not _has_options(words[1:])


def _writes_files(known: frozenset[str], words: tuple[str, ...]) -> bool:
    patterns = [_WRITING_OPTIONS[name] for name in known if name in _WRITING_OPTIONS]
    if known & _TWO_FILES:
        return sum(not word.startswith("-") for word in words) > 1
    return any(pattern.match(word) for pattern in patterns for word in words)


def _has_options(words: tuple[str, ...]) -> bool:
    return any(word.startswith("-") for word in words)


def _is_harmless_git(words: tuple[str, ...]) -> bool:
    words = words[1:] if words[:1] == ("--no-pager",) else words
    if not words or words[0] not in _GIT_READING | _GIT_LOCAL:
        return False
    return not any(word.startswith(_GIT_STARTING_OPTIONS) or _GIT_PAGER_OPTION.match(word) for word in words)


# ── Options before a subcommand ──────────────────────────────────────────────────────────────────────────

_GIT_VALUE_OPTIONS: Final = names(
    "-C -c --attr-source --config-env --git-dir --namespace --super-prefix --work-tree"
)
"""Options of git before its subcommand that take the next word as their value."""


def subcommand_places(words: tuple[str, ...]) -> list[int]:
    """Return where the subcommand of a program can begin: behind its options, and behind a word that can be the
    value of the option before it (`git -C . push`, `npm --prefix x publish`)."""
    is_git = "git" in program_names(words[0])
    places, at = [1], 1
    while at < len(words) and words[at].startswith(("-", "+")):
        takes_value = "=" not in words[at] and (not is_git or words[at] in _GIT_VALUE_OPTIONS)
        at += 1
        if not is_git:
            places.append(at)
        if takes_value and at < len(words) and (is_git or not words[at].startswith(("-", "+"))):
            at += 1
        places.append(at)
    return places


def defines_git_alias(words: tuple[str, ...]) -> bool:
    """Return whether a command of git defines an alias, which can stand for any subcommand."""
    if "git" not in program_names(words[0]):
        return False
    return any(re.match(r"(?:-c|--config-env=?)?alias\.", word, re.I) for word in words[1:])
