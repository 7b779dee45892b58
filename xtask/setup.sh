#!/bin/sh
# Installs the packages for one purpose on Debian 12 or Ubuntu 24.04:
#   sh xtask/setup.sh [--list] build|demo|bench|test|compare
# Plain sh, because xtask itself cannot be linked before gcc is installed. Never prompts; returns quickly if nothing
# is missing.
set -eu
cd "$(dirname "$0")/.."

# The packages that each purpose adds. `bench` needs those of `demo`, and `demo` those of `build`; `test` needs
# everything, except most of the programs that `compare` measures.
for_build='gcc libc6-dev make pkg-config libelf-dev zlib1g-dev clang'
for_demo='util-linux iproute2 nftables ethtool openssh-server openssh-client'
for_bench='openvswitch-switch iperf3'
for_test='python3 python3-venv conntrack tcpdump tshark bind9-dnsutils nmap curl qemu-system-x86 busybox-static cpio binutils musl-tools'
# The VPNs of the comparison's own test and of the tunnel's bench, and the others that Debian has.
few_vpns='openvpn wireguard-tools wireguard-go'
all_vpns="$few_vpns openssl charon-systemd strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins \
    libstrongswan-extra-plugins ocserv openconnect softether-vpnserver softether-vpnclient softether-vpncmd tinc fastd nebula \
    n2n vtun socat fwknop-server fwknop-client"
browser='chromium chromium-driver'
# shellcheck source=/dev/null
[ "$(. /etc/os-release; echo "$ID")" != ubuntu ] || browser='chromium-browser chromium-chromedriver'

say() { printf 'setup: %s\n' "$*"; }
fail() { say "$*" >&2; exit 2; }

list=no
[ "${1:-}" != --list ] || { list=yes; shift; }
purpose=${1:-test}
case $purpose in
build) wanted="$for_build" ;;
demo) wanted="$for_build $for_demo" ;;
bench) wanted="$for_build $for_demo $for_bench $few_vpns" ;;
compare) wanted="$for_build $for_demo $all_vpns" ;;
test)
    wanted="$for_build $for_demo $for_bench $for_test $few_vpns $browser"
    # Node may be installed without a package, and its package may include npm.
    command -v node >/dev/null || wanted="$wanted nodejs"
    command -v npm >/dev/null || wanted="$wanted npm"
    # Programs in Go and Java connect under `vouchsafe run`.
    command -v go >/dev/null || wanted="$wanted golang-go"
    command -v java >/dev/null || wanted="$wanted default-jdk-headless"
    ;;
*) fail "no such purpose: $purpose; there are build, demo, bench, test and compare" ;;
esac
[ $list = no ] || { echo "$wanted"; exit; }

command -v dpkg-query >/dev/null || fail "only Debian and Ubuntu are known here; install by hand: $wanted"
missing=''
for package in $wanted; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
    installed) ;;
    *) missing="$missing $package" ;;
    esac
done

if [ -n "$missing" ]; then
    sudo=''
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "needs root or sudo to install:$missing"
        sudo=sudo
    fi
    say "installing$missing"
    apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null; }
    # An unreachable third-party source must not stop the setup; a package that is missing makes the install fail.
    apt update || say "apt-get update complained; trying with the lists at hand"
    # A solution that this system's archive lacks is skipped by the comparison, which says so.
    if [ "$purpose" = compare ]; then
        there=''
        for package in $missing; do
            if apt-cache show "$package" >/dev/null 2>&1; then there="$there $package"; else say "no package $package here"; fi
        done
        missing=$there
    fi
    # shellcheck disable=SC2086
    apt install -y --no-install-recommends $missing >/dev/null || fail "apt-get could not install:$missing"
    # The scenarios start their own services inside namespaces. This host gets no new service and no open port.
    if [ -d /run/systemd/system ]; then
        for new in $missing; do
            case $new in
            openssh-server) services='ssh.socket ssh.service' ;;
            fwknop-server | openvpn | ocserv | tinc | fastd | nebula | n2n | vtun) services="$new.service" ;;
            charon-systemd) services='strongswan.service' ;;
            softether-vpnserver | softether-vpnclient) services="$new.service" ;;
            openvswitch-switch) services='openvswitch-switch.service ovsdb-server.service ovs-vswitchd.service' ;;
            *) continue ;;
            esac
            # shellcheck disable=SC2086
            $sudo systemctl disable --quiet --now $services 2>/dev/null || true
            say "$new is new here: its system service is switched off"
        done
    fi
    say "installed$missing"
else
    say "all packages for $purpose are there"
fi

command -v cargo >/dev/null || fail "cargo is missing: install Rust from https://rustup.rs"
[ "$purpose" = test ] || exit 0

if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    command -v rustup >/dev/null || fail "rustfmt and clippy are missing and there is no rustup to add them"
    say "adding rustfmt and clippy"
    rustup --quiet component add rustfmt clippy
fi

# Schemathesis, the property tester of the API tests, from PyPI with every version pinned. It is installed below the
# target directory, so that the system's Python does not change.
tester="${CARGO_TARGET_DIR:-target}/tools/schemathesis"
# A copied or moved environment refers to its old path and does not start.
if ! cmp -s xtask/schemathesis.txt "$tester/installed.txt" || ! "$tester/bin/pip" --version >/dev/null 2>&1; then
    say "installing schemathesis into $tester"
    rm -rf "$tester"
    python3 -m venv "$tester" || fail "python3 can't make $tester: is python3-venv there?"
    "$tester/bin/pip" install --quiet --disable-pip-version-check --no-deps -r xtask/schemathesis.txt </dev/null ||
        fail "pip could not install schemathesis"
    cp xtask/schemathesis.txt "$tester/installed.txt"
fi

# The OpenID provider of the scenarios with logins: the packages in its lock file, installed once per lock file.
provider=lab/provider
parts=${CARGO_TARGET_DIR:-target}/parts/provider
locked=$(cat "$provider/package.json" "$provider/package-lock.json" | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$parts/locked" 2>/dev/null)" != "$locked" ]; then
    say "installing the OpenID provider of the scenarios"
    rm -rf "$parts"
    mkdir -p "$parts"
    cp "$provider/package.json" "$provider/package-lock.json" "$parts"
    (cd "$parts" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null) \
        || fail "npm could not install what $provider/package-lock.json names"
    echo "$locked" >"$parts/locked"
fi
