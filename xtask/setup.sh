#!/bin/sh
# Installs the packages for one purpose on Debian 12 or Ubuntu 24.04:
#   sh xtask/setup.sh [--list] build|lint|package|package-arm64|demo|bench|test|compare
# It is plain sh, because xtask itself cannot be linked before gcc is installed. It never prompts, and returns quickly
# if nothing is missing.
set -eu
cd "$(dirname "$0")/.."

# The packages that each purpose adds. `bench` also needs those of `demo`, `demo` and `package` those of `build`, and
# `package-arm64` those of `package`. `lint` needs those of `build`, and rustfmt and clippy.
# `test` needs everything, except most of the programs that `compare` measures.
for_build='gcc libc6-dev make pkg-config libelf-dev zlib1g-dev clang'
for_package='dpkg-dev git xz-utils'
# The compiler for arm64, and the emulator that runs the program to make it write its man pages.
for_arm64='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user'
for_demo='util-linux iproute2 nftables ethtool openssh-server openssh-client'
# The documentation of Perl's modules is the text that the tunnel's bench compresses.
for_bench='openvswitch-switch iperf3 perl'
for_test='python3 python3-venv conntrack tcpdump tshark bind9-dnsutils nmap curl qemu-system-x86 busybox-static cpio binutils musl-tools mmdebstrap socat nginx haproxy etcd-server etcd-client'
# The VPNs that the comparison's own test and the bench of tunnels need, and the other VPNs that Debian has.
few_vpns='openvpn wireguard-tools wireguard-go'
all_vpns="$few_vpns openssl charon-systemd strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins \
    libstrongswan-extra-plugins ocserv openconnect softether-vpnserver softether-vpnclient softether-vpncmd tinc fastd nebula \
    n2n vtun quicktun socat ppp xl2tpd fwknop-server fwknop-client"
# `lab rootless` and the driver's package need `chromium`. The other scenarios use the shell, which starts four times as
# fast.
browser='chromium-headless-shell chromium chromium-driver'
# VPNs that are built at their current releases; see peers.sh.
peers=''
# shellcheck source=/dev/null
[ "$(. /etc/os-release; echo "$ID")" != ubuntu ] || browser='chromium-browser chromium-chromedriver'

say() { printf 'setup: %s\n' "$*"; }
fail() { say "$*" >&2; exit 2; }

list=no
[ "${1:-}" != --list ] || { list=yes; shift; }
purpose=${1:-test}
case $purpose in
build | lint) wanted="$for_build" ;;
package) wanted="$for_build $for_package" ;;
package-arm64) wanted="$for_build $for_package $for_arm64" ;;
demo) wanted="$for_build $for_demo" ;;
bench)
    wanted="$for_build $for_demo $for_bench $few_vpns"
    peers=wireguard-go
    ;;
compare)
    wanted="$for_build $for_demo $all_vpns"
    peers='wireguard-go boringtun nebula tailscale'
    ;;
test)
    wanted="$for_build $for_package $for_arm64 $for_demo $for_bench $for_test $few_vpns $browser"
    peers=wireguard-go
    # Node may be installed without a package, or with a package that includes npm.
    command -v node >/dev/null || wanted="$wanted nodejs"
    command -v npm >/dev/null || wanted="$wanted npm"
    # Programs in Go and Java connect under `vouchsafe run`.
    command -v java >/dev/null || wanted="$wanted default-jdk-headless"
    ;;
*) fail "no such purpose: $purpose; there are build, lint, package, package-arm64, demo, bench, test and compare" ;;
esac
[ -z "$peers" ] || command -v go >/dev/null || wanted="$wanted golang-go"
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
    # The comparison skips a solution that this system's archive lacks, and says so.
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
            fwknop-server | openvpn | ocserv | tinc | fastd | nebula | n2n | vtun | xl2tpd) services="$new.service" ;;
            charon-systemd) services='strongswan.service' ;;
            softether-vpnserver | softether-vpnclient) services="$new.service" ;;
            nginx | haproxy) services="$new.service" ;;
            etcd-server) services='etcd.service' ;;
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
case $purpose in
lint | test)
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        command -v rustup >/dev/null || fail "rustfmt and clippy are missing and there is no rustup to add them"
        say "adding rustfmt and clippy"
        rustup --quiet component add rustfmt clippy
    fi
    ;;
esac
# shellcheck disable=SC2086
[ -z "$peers" ] || sh xtask/peers.sh $peers

# Debian's libraries for arm64 that the program needs, each package below a folder of its own, and `root` with all of
# them. They come from this machine's mirror, without telling this machine's dpkg of another processor.
libraries_for_arm64() {
    parts=${CARGO_TARGET_DIR:-target}/parts/arm64
    [ "$(. /etc/os-release; echo "$ID")" = debian ] || {
        say "no libraries for arm64: only Debian has them on the mirror of its other packages"
        return 0
    }
    packages='libc6 libgcc-s1 libelf1 zlib1g libelf-dev zlib1g-dev'
    # The headers are the same for both processors, and of the version that is installed here.
    release="$packages $(dpkg-query -W -f '${Version} ' libelf-dev zlib1g-dev libc6)"
    [ "$(cat "$parts/made" 2>/dev/null)" != "$release" ] || return 0
    say "fetching libraries for arm64"
    rm -rf "$parts"
    mkdir -p "$parts/apt/lists/partial" "$parts/apt/cache/archives/partial" "$parts/root"
    parts=$(cd "$parts" && pwd)
    : >"$parts/apt/status"
    apt_for_arm64() {
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$parts/apt" \
            -o Dir::State::status="$parts/apt/status" -o Dir::Cache="$parts/apt/cache" -o Debug::NoLocking=1 \
            -o APT::Sandbox::User= "$@" </dev/null
    }
    apt_for_arm64 update || say "apt-get update complained; trying with the lists at hand"
    # shellcheck disable=SC2086
    (cd "$parts/apt" && apt_for_arm64 download $packages) || fail "apt-get could not fetch libraries for arm64"
    for package in $packages; do
        dpkg-deb --raw-extract "$parts/apt/${package}_"*.deb "$parts/$package"
        dpkg-deb --extract "$parts/apt/${package}_"*.deb "$parts/root"
    done
    # A link to /lib would lead to this machine's own libraries.
    find "$parts/root" -type l -lname '/*' | while read -r link; do
        ln -srfn "$parts/root$(readlink "$link")" "$link"
    done
    rm -rf "$parts/apt"
    echo "$release" >"$parts/made"
}
case $purpose in package-arm64 | test) libraries_for_arm64 ;; esac
[ "$purpose" = test ] || exit 0

# Installs from PyPI, with every version pinned, Schemathesis, the property tester of the API tests, and CycloneDX's own
# validator of bills of materials. They go below the target directory, so that the system's Python does not change.
for tool in schemathesis cyclonedx; do
    place="${CARGO_TARGET_DIR:-target}/tools/$tool"
    # An environment that was copied or moved refers to its old path and does not start.
    if ! cmp -s "xtask/$tool.txt" "$place/installed.txt" || ! "$place/bin/pip" --version >/dev/null 2>&1; then
        say "installing $tool into $place"
        rm -rf "$place"
        python3 -m venv "$place" || fail "python3 can't make $place: is python3-venv there?"
        "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "xtask/$tool.txt" </dev/null ||
            fail "pip could not install $tool"
        cp "xtask/$tool.txt" "$place/installed.txt"
    fi
done

# Installs the OpenID provider of the scenarios with logins: the packages in its lock file, once per lock file.
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

# A Debian or Ubuntu of this machine's release, from its mirror, in which the packages are tested. The libraries that the
# program loads are in it, and what a server has before anybody protects it, so that the tests need no network.
base=${CARGO_TARGET_DIR:-target}/parts/debian.tar
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
libraries=$(dpkg-query --search '*/libelf.so.1' '*/libz.so.1' '*/libgcc_s.so.1' | cut -d : -f 1 | sort -u | paste -s -d ,)
include="$libraries,passwd,systemd,sudo,openssh-server,openssl"
wanted="$release $include"
if [ "$(cat "$base.made" 2>/dev/null)" != "$wanted" ]; then
    say "making the system in which packages are tested"
    mirror=$(apt-get --print-uris download base-files | sed -n "s,^'\\(.*\\)/pool/.*,\\1,p")
    [ -n "$mirror" ] || fail "apt-get knows no mirror"
    sudo=''
    [ "$(id -u)" = 0 ] || sudo=sudo
    mkdir -p "${base%/*}"
    # A test may just be reading the old one.
    $sudo mmdebstrap --quiet --format=tar --variant=minbase --include="$include" "$release" "$base.new" "$mirror" \
        || fail "mmdebstrap could not make a system from $mirror"
    $sudo mv "$base.new" "$base"
    echo "$wanted" >"$base.made"
fi

# The real helm, for the chart's test, where this machine's Go is new enough for it.
helm=${CARGO_TARGET_DIR:-target}/parts/helm
helm_version=v3.19.0
if [ -x "$helm/$helm_version/helm" ]; then
    :
elif ! go version | grep -qE 'go1\.(2[4-9]|[3-9][0-9])'; then
    say "no helm: its build needs Go 1.24 or later, so tests of the chart skip what needs it"
else
    say "building helm $helm_version"
    mkdir -p "$helm/$helm_version"
    GOBIN=$(cd "$helm/$helm_version" && pwd) GOFLAGS=-trimpath go install "helm.sh/helm/v3/cmd/helm@$helm_version" \
        || fail "go could not build helm $helm_version"
fi
