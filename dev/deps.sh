#!/bin/sh
# Installs what the build needs and is missing: Debian or Ubuntu packages, by apt-get. Called by make.
# Usage: deps.sh [quiet] [PACKAGE...]   extra packages are installed when they are missing, too
quiet=; [ "$1" = quiet ] && { quiet=1; shift; }
want=
# A header counts as there in the system's place or in a folder of $CPATH (what dev/gpu.sh carries along).
need() {
    for folder in /usr/include $(echo "$CPATH" | tr : ' '); do [ -e "$folder/$1" ] && return; done
    want="$want $2"
}
command -v "${CXX:-g++}" >/dev/null || want="$want g++"
need CLI/CLI.hpp libcli11-dev
need doctest/doctest.h doctest-dev
need nlohmann/json.hpp nlohmann-json3-dev
need pcre2.h libpcre2-dev
[ -e /usr/include/dnnl.hpp ] || need oneapi/dnnl/dnnl.hpp libdnnl-dev
for p in "$@"; do dpkg -s "$p" >/dev/null 2>&1 || want="$want $p"; done
[ -z "$want" ] && { [ -n "$quiet" ] || echo "deps: everything is installed"; exit 0; }
echo "deps: installing$want"
sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { $sudo apt-get install -y --no-install-recommends $want ||
      { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $want; }; } >build-deps.log 2>&1 &&
        { rm -f build-deps.log; exit 0; }
    tail -5 build-deps.log
fi
# oneDNN is the one that may be missing: the build then uses plain blocked loops.
[ "$want" = " libdnnl-dev" ] && { echo "deps: no oneDNN (libdnnl-dev): plain blocked loops instead"; exit 0; }
echo "deps: could not install$want; install them by hand (names of Debian packages) and run make again"
exit 1
