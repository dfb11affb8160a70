"""Kinds of programs: always asked, never allowed by first words, not harmless in a sandbox.

A program is known by the first word of a command and by the file that it stands for, links resolved, without
version numbers and whatever the case of its letters: `python3.12` is `python`, and `sh` is also `dash`.
"""

from __future__ import annotations

import os
import re
from typing import Final

MIN_PREFIX_WORDS: Final = 2

# ── Lists ────────────────────────────────────────────────────────────────────────────────────────────────


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALWAYS_ASKED: Final = _names(
    """
    . : alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown
    enable eval exec exit export fc fg getopts hash help history jobs let local logout mapfile popd printf pushd
    read readarray readonly return set shift shopt source suspend test times trap type typeset ulimit umask
    unalias unset wait
    """
)
"""Commands of bash itself. They change the shell for the commands after them in the line (`hash -p`,
`printf -v`), or evaluate their words (`test -v`). `echo`, `false`, `pwd` and `true` do neither."""
_SHELLS: Final = _names(
    """
    ash bash busybox csh dash elvish fish ksh mksh nu pwsh rbash sh tcsh toybox xonsh yash zsh
    """
)
_INTERPRETERS: Final = _names(
    """
    awk bc bun dc deno ed elixir emacs erl ex expect gawk gdb ghci groovy guile java jq julia less lldb lua
    luajit m4 man mawk more mysql nano nawk node nodejs nvim ocaml osascript perl php psql pypy python rscript
    ruby scala sed sqlite swift tclsh ts-node tsx vi view vim
    """
)
_STARTERS: Final = _names(
    """
    at batch bwrap catchsegv chroot chrt crontab dbus-run-session entr env fakeroot flock ionice
    ld-linux-aarch64.so ld-linux-x86-64.so linux ltrace nice nohup nsenter numactl parallel perf prlimit
    run-parts runuser script setarch setpriv setsid start-stop-daemon stdbuf strace systemd-run taskset time
    timeout unbuffer unshare watch watchexec xargs
    """
)
_BUILDERS: Final = _names(
    """
    ant ava bazel buck cmake ctest cypress eslint gmake gradle gradlew invoke jest just karma make meson mocha
    mvn mvnw ninja nose nox phpunit playwright prove py.test pytest rake rspec scons task tox tsc turbo vite
    vitest webpack xcodebuild
    """
)
_PACKAGE_MANAGERS: Final = _names(
    """
    apk apt apt-get aptitude brew bundle bundler cargo cmd composer conda corepack cpan cpanm dnf dotnet dpkg
    easy_install emerge flatpak gem go guix hatch mamba micromamba mix nix nix-env nix-shell npm npx opkg pacman
    pdm pip pipenv pipx pixi pkg pnpm poetry port rpm rustup rye snap stack uv uvx yarn yum zypper
    """
)
_DELETERS: Final = _names(
    """
    dd mv rename rm rmdir shred srm truncate unlink wipe
    """
)
_OVERWRITERS: Final = _names(
    """
    cp install ln patch rsync split sponge tee
    """
)
_ARCHIVERS: Final = _names(
    """
    7z 7za bsdtar bunzip bzip cpio gunzip gzip tar unar unrar unxz unzip unzstd xz zip zstd
    """
)
_NETWORK_PROGRAMS: Final = _names(
    """
    ansible ansible-playbook aria aria2c aws az curl dig docker docker-compose doctl eb fetch firebase flyctl
    ftp gcloud gh glab gsutil helm heroku host hub kubectl lftp lynx mail mailx minikube mosh nc ncat netcat
    netlify nmap nslookup oc openssl ping podman pulumi rclone s3cmd scp sendmail serverless sftp skopeo
    smbclient socat ssh ssh-add ssh-copy-id ssh-keygen svn telnet terraform tofu twine vagrant vercel w3m wget
    wrangler xh
    """
)
_PRIVILEGES: Final = _names(
    """
    apparmor_parser chattr chgrp chmod chown chsh doas gpasswd insmod iptables kill killall launchctl loginctl
    modprobe mount newgrp nft passwd pkexec pkill reboot service setcap setfacl shutdown skill su sudo sysctl
    systemctl umount useradd userdel usermod visudo
    """
)
_NOT_HARMLESS: Final = (
    _DELETERS | _OVERWRITERS | _NETWORK_PROGRAMS | _PRIVILEGES | _names("at batch crontab git-lfs hg jj svn")
)
NEVER_BY_PREFIX: Final = (
    _NOT_HARMLESS
    | _SHELLS
    | _INTERPRETERS
    | _STARTERS
    | _BUILDERS
    | _PACKAGE_MANAGERS
    | _ARCHIVERS
    | _names("fd find")
)
"""Programs that delete, overwrite, publish, fetch, interpret or start other programs."""

_PROGRAM_STARTERS: Final = _STARTERS | _SHELLS | _INTERPRETERS | _names("doas fd find npx pkexec su sudo uvx")

_GIT_READING: Final = _names(
    """
    blame cat-file count-objects describe diff grep log ls-files ls-tree merge-base name-rev rev-list rev-parse
    shortlog show show-ref status whatchanged
    """
)
_GIT_LOCAL: Final = _names("add commit init")
_GIT_SHOWN_OPTIONS: Final = _names(
    """
    --abbrev-commit --all --branch --cached --date-order --decorate --first-parent --graph --ignored --merges
    --name-only --name-status --no-color --no-merges --numstat --oneline --patch --porcelain --raw --reverse
    --short --shortstat --show-toplevel --staged --stat --summary --tags --untracked-files --word-diff -b -l -n
    -p -s -u -v
    """
)
"""Options of git's reading commands that only change what is printed."""
_GIT_STARTING_OPTIONS: Final = ("--output", "--ext-diff", "--textconv", "--open-files", "-O", "--exec")
"""Options of git that write a file or start a program, by how they begin."""
_FIND_ACTIONS: Final = ("-delete", "-exec", "-ok", "-fls", "-fprint")
_BUILD_COMMANDS: Final = _names("bench build check clippy doc fmt format lint run test vet version")
"""Subcommands of package managers that build or test."""


# ── Questions about a command ────────────────────────────────────────────────────────────────────────────


def program_names(word: str, program: str = "") -> frozenset[str]:
    """Return the names by which a program is known: the word as written and the file it stands for."""
    return frozenset(_base_name(path) for path in (word, program) if path)


def _base_name(path: str) -> str:
    name = os.path.basename(path).casefold()
    return re.sub(r"[-.\d]+$", "", name.removesuffix(".exe")) or name


def is_always_asked(words: tuple[str, ...]) -> bool:
    """Return whether the command is one of bash itself that no rule can cover."""
    return words[0] in ALWAYS_ASKED


def starts_programs(words: tuple[str, ...]) -> bool:
    """Return whether the words of a command can name further programs to run (`env`, `bash -c`, `find -exec`)."""
    return bool(program_names(words[0]) & _PROGRAM_STARTERS)


def can_be_prefix(words: tuple[str, ...], program: str = "") -> bool:
    """Return whether commands that begin with these words can be allowed."""
    names = program_names(words[0], program)
    if len(words) < MIN_PREFIX_WORDS or is_always_asked(words) or names & NEVER_BY_PREFIX:
        return False
    if any(name.startswith("git-") for name in names):
        return False
    return "git" not in names or words[1] in _GIT_READING


def may_follow_prefix(prefix: tuple[str, ...], word: str) -> bool:
    """Return whether a word after a prefix is covered: arguments are, options are not (`--output=FILE`), except
    options of git that only change what is printed."""
    if not word.startswith("-"):
        return True
    if "git" not in program_names(prefix[0]):
        return False
    return word in _GIT_SHOWN_OPTIONS or re.fullmatch(r"-\d+", word) is not None


def is_harmless(words: tuple[str, ...], program: str = "") -> bool:
    """Return whether a command in the sandbox needs no question: it neither deletes, publishes, fetches nor changes
    privileges. Interpreters, builds and test runners are harmless there."""
    if is_always_asked(words):
        return False
    # What starts another program is as harmful as any program that its words name.
    starts_others = bool(program_names(words[0], program) & _STARTERS)
    last = len(words) if starts_others else 1
    return all(_is_harmless_at(words[at:], program if at == 0 else "") for at in range(last) if words[at])


def _is_harmless_at(words: tuple[str, ...], program: str) -> bool:
    names = program_names(words[0], program)
    if names & _NOT_HARMLESS or any(name.startswith("git-") for name in names):
        return False
    if "git" in names:
        return _is_harmless_git(words[1:])
    if names & _SHELLS:
        # A shell without a script runs what it reads, or the word after `-c`.
        return len(words) > 1 and not words[1].startswith("-")
    if names & _PACKAGE_MANAGERS:
        return len(words) > 1 and words[1] in _BUILD_COMMANDS
    if "find" in names:
        return not any(word.startswith(_FIND_ACTIONS) for word in words)
    if names & {"sed", "perl", "ruby"}:
        return not any(word.startswith(("-i", "--in-place")) for word in words)
    return True


def _is_harmless_git(words: tuple[str, ...]) -> bool:
    words = words[1:] if words[:1] == ("--no-pager",) else words
    known = words[:1] and words[0] in _GIT_READING | _GIT_LOCAL
    return bool(known) and not any(word.startswith(_GIT_STARTING_OPTIONS) for word in words)
