"""Kinds of commands: those that only read, that commit, that may be allowed by first words, that may delete.

A program is known by the first word of a command and by the file that it stands for; see
`foveal.config.code_runners`.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.config.code_runners import (
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

_TEST_OPTIONS: Final = names(
    """
    -q -qq -v -vv -x -s -l -k -m -n -ra -rA -rf -rs -rx --lf --ff --sw --co --collect-only --no-header --exitfirst
    --maxfail --tb --durations --verbose --quiet
    """
)
_GO_OPTIONS: Final = names("-v -run -race -count -short -timeout")
_CARGO_OPTIONS: Final = names(
    "--release --all --workspace --lib --bins --tests --all-targets --all-features -p -q -v"
)
_CHECK_OPTIONS: Final = names("--fix --diff --check --quiet --strict -q -v --select --statistics --noEmit")
RUNNER_OPTIONS: Final[dict[tuple[str, ...], frozenset[str]]] = {
    ("pytest",): _TEST_OPTIONS,
    **{(python, "-m", "pytest"): _TEST_OPTIONS for python in ("python", "python3")},
    ("uv", "run", "pytest"): _TEST_OPTIONS,
    ("go", "test"): _GO_OPTIONS,
    **{("go", each): _GO_OPTIONS for each in ("build", "vet")},
    **{("cargo", each): _CARGO_OPTIONS for each in ("test", "build", "check", "clippy", "fmt")},
    **{("npm", each): frozenset[str]() for each in ("test", "t")},
    **{("npm", "run", each): frozenset[str]() for each in ("test", "build", "lint", "check", "typecheck")},
    **{("ruff", each): _CHECK_OPTIONS for each in ("check", "format")},
    **{(each,): _CHECK_OPTIONS for each in ("mypy", "eslint", "tsc")},
    ("git", "add"): names("-A -u -v -N --all --update --verbose --intent-to-add --"),
    ("git", "commit"): names(
        "-m -a -am -s -q -v --message --all --amend --no-edit --signoff --quiet --allow-empty"
    ),
}
"""First words of test runners, checks, builds and commits that a rule can name also without a sandbox, with the
options that a rule covers. Such a rule allows the code of the project to run, whatever it has become."""

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
_BUILD_COMMANDS: Final = names(
    "bench build check clippy doc fmt format freeze lint list ls run start test tree version vet --version"
)
"""Subcommands of package managers that build, test or list."""
_MAKERS: Final = names("ant gmake gradle gradlew invoke just make mvn mvnw ninja rake scons task")
_CLEANING: Final = re.compile(r"(?:.*[:_-])?(?:dist|real)?clean(?:all)?(?:[:_-].*)?|mrproper|uninstall")
"""Targets of builds that delete files, such as `make distclean` and `npm run clean:all`."""
_RUNNERS: Final = names("conda hatch mamba micromamba pdm pipenv pixi poetry rye uv")
"""Package managers whose `run` starts any program."""
_PLAIN_STARTERS: Final = names("env nice nohup setsid")
"""Starters after which the command follows, if they have no options."""
_READERS: Final = names(
    "basename cat cksum cut dirname du echo file grep egrep fgrep head ls nl od stat tac tail wc"
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
    if words and runner_prefix(words) == words:
        return True
    known = program_names(words[0], program)
    if len(words) < MIN_PREFIX_WORDS or is_always_asked(words) or known & NEVER_BY_PREFIX:
        return False
    if any(name.startswith("git-") for name in known):
        return False
    return "git" not in known or words[1] in _GIT_READING


def runner_prefix(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first words of a test runner, a build or a commit, by which it can be allowed also without a
    sandbox; () if the command is another one."""
    return next((first for first in RUNNER_OPTIONS if words[: len(first)] == first), ())


def may_follow_prefix(prefix: tuple[str, ...], word: str) -> bool:
    """Return whether a word after a prefix is covered: arguments are, options are not (`--output=FILE`), except
    options that are known to change only what runs or is printed. Arguments of a runner stay in the project."""
    if prefix in RUNNER_OPTIONS:
        if word.startswith("-"):
            return (
                word.partition("=")[0] in RUNNER_OPTIONS[prefix] or re.fullmatch(r"-n?\d+", word) is not None
            )
        return not word.startswith("/") and ".." not in word.split("/")
    if not word.startswith("-"):
        return True
    if "git" not in program_names(prefix[0]):
        return False
    return word in _GIT_SHOWN_OPTIONS or re.fullmatch(r"-\d+", word) is not None


# ── What a command of a sandbox may do ───────────────────────────────────────────────────────────────────

_SHELL_STATE: Final = names(
    """
    : [ [[ break cd continue declare dirs exit export getopts hash help let local mapfile popd printf pushd read
    readarray readonly return set shift shopt source test time times type typeset ulimit umask unset wait .
    """
)
"""Commands of bash that change only the shell, which ends with the line, or run a script."""
_POWERLESS: Final = names("chmod kill killall pkill skill")
"""Programs that delete nothing, and reach no process outside of the sandbox."""
_GIT_REMOTE: Final = {("clone",), ("fetch",), ("ls-remote",), ("pull",), ("push",)}
"""Commands of git that fail without a network, before they change a file."""
_GIT_TRANSPORT_OPTIONS: Final = ("--upl", "--rece", "--ex", "-c", "--conf")
"""Options of these that name a program to run or a setting, by how they begin."""
_EXPANDED: Final = re.compile(r"[$`\\*?{~]")
_DELETING_CODE: Final = re.compile(
    r"rmtree|unlink|rmdir|truncate|\bremove\(|rename\(|os\.replace|shutil\.move|rmSync|\brm\b|FileUtils|File\.delete"
    r"|write_text|write_bytes|writeFile|createWriteStream|File\.write|shutil\.copy"
    r"|\bopen\b\(?[^()]*,[^()]*[\"'](?:[rbtUa]*[w+]|\+?>[^>])"
)
_NAMED_DELETERS: Final = names("cp mv rm rmdir shred tee truncate unlink")
_PLAIN_DELETER_OPTIONS: Final = names("-a -f -i -n -p -r -R -v -rf -fr -rv --force --recursive --verbose --")


def may_delete(words: tuple[str, ...], text: str, program: str = "") -> bool:
    """Return whether a command of the line `text`, of any syntax, may delete or overwrite files."""
    if _EXPANDED.search(words[0]):
        return True
    if words[0] in _SHELL_STATE or "=" in words[0]:
        # `test -v` and others evaluate their words, also those in single quotes.
        return any("$(" in word or "`" in word for word in words)
    known = program_names(words[0], program)
    if known & (INTERPRETERS | COMMAND_SHELLS) and _DELETING_CODE.search(text):
        return True
    if known & _POWERLESS or ("git" in known and (_git_only_reads(words[1:]) or _only_reaches_out(words))):
        return False
    return not is_harmless(words, program)


def _only_reaches_out(words: tuple[str, ...]) -> bool:
    """Return whether a command of git fails without a network, and names no program to run before that."""
    options = (*_GIT_TRANSPORT_OPTIONS, *(("-u",) if words[1:2] == ("clone",) else ()))
    return words[1:2] in _GIT_REMOTE and not any(word.startswith(options) for word in words)


def deletes_only_named(words: tuple[str, ...]) -> bool:
    """Return whether a command deletes and overwrites only what its words name, or what is in folders that they
    name."""
    options = {word for word in words[1:] if word.startswith("-")}
    is_literal = not any(_EXPANDED.search(word) or "[" in word for word in words)
    return words[0] in _NAMED_DELETERS and is_literal and options <= _PLAIN_DELETER_OPTIONS


def reaches_out(words: tuple[str, ...]) -> bool:
    """Return whether a command fetches or publishes, if it has a network."""
    known = program_names(words[0])
    if _EXPANDED.search(words[0]) or known & _NETWORK_PROGRAMS:
        return True
    if "git" in known:
        if _git_only_reads(words[1:]):
            return False
        places = subcommand_places(words)
        return not any(words[at] in _GIT_READING | _GIT_WRITING for at in places if at < len(words))
    if known & PACKAGE_MANAGERS:
        return not _builds_only(known, words[1:])
    if known & INTERPRETERS and words[1:2] == ("-m",) and words[2:]:
        return reaches_out(words[2:])
    if starts_programs(words):
        named = _PROGRAM_WORD.findall(" ".join(words[1:])) if known & COMMAND_SHELLS else words[1:]
        return any(program_names(word) & (_NETWORK_PROGRAMS | {"git"}) for word in named if word)
    return False


_PROGRAM_WORD: Final = re.compile(r"[\w./+-]+")
"""What can be the name of a program in the text that a shell gets."""


# ── Committing in a sandbox ──────────────────────────────────────────────────────────────────────────────

_GIT_WRITING: Final = names(
    "add branch checkout cherry-pick commit merge mv reset restore revert rm stash switch tag"
)
_GIT_LOSING: Final[dict[str, frozenset[str]]] = {
    "branch": names("-D -f -m -M -c -C --force --move --copy"),
    "tag": names("-d -f --delete --force"),
    "checkout": names("-B"),
    "switch": names("-C --force-create"),
    "reset": names("--hard --keep --merge"),
    "stash": names("drop clear"),
}
"""Words with which these commands lose commits that no file of the workspace holds. `branch -d` deletes only what
is merged."""


def commits(words: tuple[str, ...]) -> bool:
    """Return whether a command of git stages or commits, and loses no commit by that."""
    rest = _git_words(words)
    if words[0] != "git" or not rest or rest[0] not in _GIT_WRITING:
        return False
    losing = _GIT_LOSING.get(rest[0], frozenset())
    is_losing = losing & {*rest[1:], *_short_options(rest)} or any(
        word.startswith("--") and len(word) > 2 and option.startswith(word)  # git accepts abbreviations
        for word in rest
        for option in losing
    )
    return not is_losing and not any(word.startswith(_GIT_STARTING_OPTIONS) for word in rest)


def _short_options(words: tuple[str, ...]) -> set[str]:
    return {f"-{letter}" for word in words if re.fullmatch(r"-[A-Za-z]+", word) for letter in word[1:]}


def _git_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command of git from its subcommand on, if only a folder is named before that."""
    return words[3:] if words[1:2] == ("-C",) else words[1:]


_DIFF: Final[tuple[str, ...]] = (
    "diff",
    "--name-only",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "-z",
)


def change_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return commands of git that print which files a command of git would change, each followed by NUL. Those that
    do not apply, because a word is no revision, fail."""
    rest = _git_words(words)
    before = words[: len(words) - len(rest)]
    found = _CHANGE_QUERIES.get(rest[0], _no_queries)(rest[1:]) if words[0] == "git" and rest else []
    return [(*before, *query) for query in found]


def _no_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return []


def _switch_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    options = {*words, *_short_options(words)}
    discards = bool({"-f", "--force", "--discard-changes"} & options)
    queries = [(*_DIFF, "HEAD", "--")] if discards else []
    given, paths = _split_paths(words)
    if "--" in words:
        return [(*_DIFF, *given[:1], "--", *paths), *queries]
    if len(given) > 1:  # a revision and paths, or paths
        return [(*_DIFF, given[0], "--", *given[1:]), (*_DIFF, "--", *given), *queries]
    for word in given:
        queries += [(*_DIFF, "HEAD", name, "--") for name in (word, f"origin/{word}")]
        queries.append((*_DIFF, "--", word))
    return queries


def _restore_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    options = {*words, *_short_options(words)}
    if {"-S", "--staged"} & options and not {"-W", "--worktree"} & options:
        return []
    given, paths = _split_paths(words)
    named = [word.partition("=")[2] for word in words if word.startswith("--source=")]
    named += [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-s", "--source")]
    return [(*_DIFF, *named[:1], "--", *given, *paths)]


def _stash_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    if words[:1] in (("pop",), ("apply",), ("branch",)):
        return [
            ("stash", "show", "--include-untracked", "--name-only", "-z", *_split_paths(words[1:])[0][-1:])
        ]
    if words[:1] in (("list",), ("show",), ("create",), ("store",)):
        return []
    new = ("ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    untracked = {"-u", "-a", "--include-untracked", "--all"} & {*words, *_short_options(words)}
    return [(*_DIFF, "HEAD", "--", *_split_paths(words)[1]), *([new] if untracked else [])]


def _removal_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    given, paths = _split_paths(words)
    return [] if "--cached" in words else [("ls-files", "--full-name", "-z", "--", *given, *paths)]


def _merge_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(*_DIFF, f"HEAD...{word}", "--") for word in _split_paths(words)[0] or ("@{upstream}",)]


def _pick_queries(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(*_DIFF, word if ".." in word else f"{word}^!", "--") for word in _split_paths(words)[0]]


_CHANGE_QUERIES: Final = {
    "checkout": _switch_queries,
    "switch": _switch_queries,
    "restore": _restore_queries,
    "stash": _stash_queries,
    "rm": _removal_queries,
    "merge": _merge_queries,
    "cherry-pick": _pick_queries,
    "revert": _pick_queries,
}
_NEW_BRANCH_OPTIONS: Final = names("-b -c --create --orphan -s --source")
"""Options whose value is neither a revision to compare with HEAD nor a path."""


def _split_paths(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments before and after `--`, without options; `-` is the branch before."""
    end = words.index("--") if "--" in words else len(words)
    pairs = zip(("", *words[:end]), words[:end], strict=False)
    given = [word for above, word in pairs if above not in _NEW_BRANCH_OPTIONS]
    kept = ["@{-1}" if word == "-" else word for word in given if not re.match("-.", word)]
    return tuple(kept), words[end + 1 :]


def accompanies_commit(words: tuple[str, ...]) -> bool:
    """Return whether a command in the same line as a commit leaves the repository alone."""
    if words[0] == "git":
        return commits(words) or _is_harmless_git(_git_words(words))
    return words[0] in _READERS or words[0] in (
        "cd",
        "pwd",
        "true",
    )  # `test` and `printf` evaluate their words


# ── Only reading, without a sandbox ──────────────────────────────────────────────────────────────────────

_READING_PROGRAMS: Final = _READERS | names(
    """
    cmp column comm date df diff false find fold id md5sum nproc paste pwd readlink realpath rev rg sed sha256sum
    sort tr tree true uname uniq uptime which whoami
    """
)
_NOT_READING: Final[dict[str, re.Pattern[str]]] = {
    "grep": re.compile(r"-[^-]*[Rf]|--(deref|file)"),
    "rg": re.compile(r"--pre(?!tty)|--host|-[^-]*[Lzf]|--follow|--search-zip|--file(=|$)"),
    "tail": re.compile(r"-[^-]*[fF]|--(follow|retry)"),
    "find": re.compile("|".join((*_FIND_ACTIONS, "-[LH]$", "-follow", "-files0"))),
    "sort": re.compile(r"-[^-]*[oTS]|--(o|co|temp|files0)"),
    "tree": re.compile(r"-[^-]*[ol]|--(o|fromfile)"),
    "date": re.compile(r"-[^-]*[sfr]|--(set|file|ref)|[^+-]"),
    "file": re.compile(r"-[^-]*[Cmfz]|--(compile|magic|files|uncompress)"),
    "diff": re.compile(r"-[^-]*r|--(to|from|rec)"),
    "du": re.compile(r"-[^-]*[LX]|--(files0|deref|exclude-from)"),
    "wc": re.compile(r"--files0"),
}
"""Words with which these programs write, start programs, follow links or never end."""
_PRINTED_LINES: Final = re.compile(r"\d+(,(\d+|\$))?p")
_GIT_PRINTING: Final = re.compile(
    r"--(abbrev-ref|author|since|until|after|before|grep|format|pretty|max-count|abbrev|date|diff-filter|unified|stat"
    r"|color|decorate|word-diff|find-renames|ignore-all-space|ignore-space-change|no-renames|name-only|follow"
    r"|show-current|list|merged|no-merged|contains|sort|exclude-standard|others|modified|deleted|cached)(=.*)?"
    r"|-(\d+|n\d*|U\d+|[SGL].*|[MCwabv]|vv|sb|i|o|r|e|E|F)"
)
_GIT_LISTING: Final = {"branch": 1, "reflog": 1, "remote": 1, "tag": 1, "stash": 2}
"""Commands of git that only list, with this many words besides options."""


def only_reads(words: tuple[str, ...], program: str) -> bool:
    """Return whether a command with plain words only prints, so that it needs no question without a sandbox. The
    files that it names are checked elsewhere."""
    if not program or words[0] not in _READING_PROGRAMS | {"git"} or "/" in words[0]:
        return False
    options = [word for word in words[1:] if word.startswith("-")]
    if words[0] == "git":
        return _git_only_reads(words[1:])
    if words[0] == "sed":
        arguments = [word for word in words[1:] if not word.startswith("-")]
        return options == ["-n"] and bool(arguments) and _PRINTED_LINES.fullmatch(arguments[0]) is not None
    if words[0] == "uniq" and len(words) - len(options) > 2:
        return False
    pattern = _NOT_READING.get("grep" if words[0] in ("egrep", "fgrep") else words[0])
    looked_at = words[1:] if words[0] == "date" else options
    is_known = pattern is None or not any(pattern.match(word) for word in looked_at)
    return is_known and not any("/" in option for option in options)


def _git_only_reads(words: tuple[str, ...]) -> bool:
    words = words[1:] if words[:1] == ("--no-pager",) else words
    if not words:
        return False
    arguments = [word for word in words[1:] if not word.startswith("-")]
    if words[0] == "config":
        return _reads_setting(arguments, [word for word in words[1:] if word.startswith("-")])
    is_listing = words[0] in _GIT_LISTING and len(arguments) < _GIT_LISTING[words[0]]
    if is_listing and words[0] == "stash":
        is_listing = arguments == ["list"]
    options = [word for word in words[1:] if word.startswith("-") and word != "--"]
    return (is_listing or words[0] in _GIT_READING) and all(
        option in _GIT_SHOWN_OPTIONS or _GIT_PRINTING.fullmatch(option) for option in options
    )


def _reads_setting(arguments: list[str], options: list[str]) -> bool:
    """Return whether a `git config` prints settings: those of a key, which has a dot, or all."""
    if not options:
        return len(arguments) == 1 and "." in arguments[0]
    return options in (["--get"], ["--get-all"], ["--list"], ["-l"]) and len(arguments) <= 1


# ── Harmless where nothing can be restored ───────────────────────────────────────────────────────────────


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
    if known & (PACKAGE_MANAGERS | _MAKERS) and any(map(_CLEANING.fullmatch, words[1:])):
        return False
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
