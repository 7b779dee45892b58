#!/bin/sh
# Measures how long a newcomer waits for the demo. Clones the last commit into a bare Debian (or Ubuntu) of this
# machine's release, and runs there twice, on two processors, the commands of README.md. The system has nothing but this
# machine's Rust toolchain and its cache of downloaded crates. Downloads of packages count.
#   cargo xtask newcomer
set -eu
cd "$(dirname "$0")/.."

# The longest times in seconds, on an idle machine with two processors.
first_limit=300
second_limit=60

say() { printf 'newcomer: %s\n' "$*"; }
fail() { say "$*" >&2; exit 2; }

[ "$(id -u)" = 0 ] || fail "needs root"
for program in mmdebstrap git unshare taskset rustc; do
    command -v $program >/dev/null || fail "no $program: \`sh xtask/setup.sh test\` installs what this needs"
done
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
mirror=$(apt-get --print-uris download base-files | sed -n "s,^'\\(.*\\)/pool/.*,\\1,p")
[ -n "$mirror" ] || fail "apt-get knows no mirror"

place=${CARGO_TARGET_DIR:-target}/newcomer
rm -rf "$place"
mkdir -p "$place"
place=$(cd "$place" && pwd)
trap 'rm -rf "$place"' EXIT
system=$place/system
say "making a bare $release"
mmdebstrap --quiet --format=directory --variant=minbase --include=ca-certificates "$release" "$system" "$mirror" \
    || fail "mmdebstrap could not make a system from $mirror"
git clone --quiet --no-hardlinks . "$system/root/vouchsafe"
cp /etc/resolv.conf "$system/etc/resolv.conf"
mkdir -p "$system/opt/rust" "$system/root/.cargo"

# Runs a command line in the system's checkout. Its output goes to a file of its own.
inside() {
    SYSTEM=$system RUST=$(rustc --print sysroot) CARGO=${CARGO_HOME:-$HOME/.cargo} taskset -c 0,1 \
        unshare --mount --propagation private --pid --fork --kill-child -- sh -ec '
            mount --bind "$SYSTEM" "$SYSTEM"
            cd "$SYSTEM"
            mount -t proc proc proc
            mount -t sysfs sysfs sys
            mount -t bpf bpf sys/fs/bpf
            mount --rbind /dev dev
            mount -t tmpfs tmpfs run
            mount --bind "$RUST" opt/rust
            mount --bind "$CARGO" root/.cargo
            unset CARGO_TARGET_DIR RUSTUP_TOOLCHAIN
            export HOME=/root CARGO_HOME=/root/.cargo PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin
            exec chroot . sh -ec "cd /root/vouchsafe; $1"' sh "$1" >"$place/printed" 2>&1 || {
        tail -n 40 "$place/printed" >&2
        fail "\`$1\` failed"
    }
}

now() { date +%s; }
say "load before: $(cut -d ' ' -f 1-3 /proc/loadavg)"
began=$(now)
# A bare system has no make.
inside 'sh xtask/setup.sh demo'
installed=$(now)
inside 'make demo'
shown=$(now)
say "first run: $((shown - began)) s, $((installed - began)) s of it for packages; at most $first_limit s"
inside 'make demo'
again=$(now)
say "second run: $((again - shown)) s; at most $second_limit s"
say "load after: $(cut -d ' ' -f 1-3 /proc/loadavg)"
[ $((shown - began)) -le $first_limit ] && [ $((again - shown)) -le $second_limit ] || {
    say "too slow" >&2
    exit 1
}
