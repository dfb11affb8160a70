"""Names of programs that run code: shells, interpreters, starters, builds, package managers.

A program is known by the word that starts it and by the file that it stands for, links resolved, without version
numbers and whatever the case of its letters: `python3.12` is `python`, and `sh` is also `dash`.
"""

from __future__ import annotations

import os
import re
from typing import Final


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


MULTI_CALL_PROGRAMS: Final = names("busybox coreutils sbase-box toybox")
"""Their first argument is the program that they are."""
COMMAND_SHELLS: Final = names(
    """
    ash bash csh dash elvish fish ksh mksh nu pwsh rbash sh tcsh xonsh yash zsh
    """
)
INTERPRETERS: Final = names(
    """
    awk bc bun dc deno ed elixir emacs erl ex expect gawk gdb ghci groovy guile java jq julia less lldb lua
    luajit m4 man mawk more mysql nano nawk node nodejs nvim ocaml osascript perl php psql pypy python rscript
    ruby scala sed sqlite swift tclsh ts-node tsx vi view vim
    """
)
STARTERS: Final = names(
    """
    arch at batch bwrap catchsegv cgexec choom chpst chronic chroot chrt crontab daemon daemonize dbus-launch
    dbus-run-session dtach dumb-init entr env envdir fakeroot faketime firejail flock gosu hyperfine i386 ifne
    ionice ld-linux-aarch64.so ld-linux-x86-64.so linux linux32 linux64 ltrace nice nohup nsenter numactl parallel
    perf prlimit proot proxychains rlwrap rr run-parts runcon runuser screen script scriptreplay setarch setpriv
    setsid setuidgid sg softlimit ssh-agent start-stop-daemon stdbuf strace su-exec systemd-inhibit systemd-run
    taskset time timeout tini tmux torsocks unbuffer unshare valgrind watch watchexec x86_64 xargs xterm xvfb-run
    """
)
"""Programs whose arguments name another program to start."""
BUILDERS: Final = names(
    """
    ant ava bazel buck cmake ctest cypress eslint gmake gradle gradlew invoke jest just karma make meson mocha
    mvn mvnw ninja nose nox phpunit playwright prove py.test pytest rake rspec scons task tox tsc turbo vite
    vitest webpack xcodebuild
    """
)
PACKAGE_MANAGERS: Final = names(
    """
    apk apt apt-get aptitude brew bundle bundler bunx cargo cmd composer conda corepack cpan cpanm dnf dotnet dpkg
    easy_install emerge flatpak gem go guix hatch mamba micromamba mix nix nix-env nix-shell npm npx opkg pacman
    pdm pip pipenv pipx pixi pkg pnpm pnpx poetry port rpm rustup rye snap stack uv uvx yarn yum zypper
    """
)


def program_names(word: str, program: str = "") -> frozenset[str]:
    """Return the names by which a program is known: the word as written and the file it stands for."""
    return frozenset(name for path in (word, program) if path for name in _base_names(path))


def _base_names(path: str) -> tuple[str, str]:
    """Return the name of a file as it is and without a version."""
    name = os.path.basename(path).casefold().removesuffix(".exe")
    return name, re.sub(r"[-.\d]+$", "", name) or name
