#!/bin/sh
# Builds VPNs whose Debian packages are years old or do not exist, at pinned versions, into target/parts/peers:
#   sh xtask/peers.sh wireguard-go|boringtun|nebula|tailscale …
# Benches and the comparison find them there before those of the system. If a peer cannot be built, for instance because this
# machine's Go is too old for it, the script names the peer and leaves it out. Then the system's package of it, if there is
# one, is measured instead, and the results name the version.
set -eu
cd "$(dirname "$0")/.."

place=${CARGO_TARGET_DIR:-target}/parts/peers
mkdir -p "$place/made"
place=$(cd "$place" && pwd)
say() { printf 'setup: %s\n' "$*"; }
# Builds only use what is idle, so that a slow machine stays usable.
calm() { nice -n 10 "$@" </dev/null; }

# made NAME VERSION: reports whether this version has been built here.
made() { [ "$(cat "$place/made/$1" 2>/dev/null)" = "$2" ]; }

# with_go NAME VERSION MINOR COMMAND…: runs the command, whose programs go to $GOBIN, where Go is 1.MINOR or later.
with_go() {
    name=$1 version=$2 minor=$3
    shift 3
    made "$name" "$version" && return
    here=$(go version 2>/dev/null | sed -n 's/.* go1\.\([0-9]*\).*/\1/p')
    if [ "${here:-0}" -lt "$minor" ]; then
        say "no $name $version: its build needs Go 1.$minor or later, and Go here is ${here:+1.}${here:-missing}"
        return
    fi
    say "building $name $version"
    GOBIN=$place GOFLAGS='-trimpath -buildvcs=false' calm "$@" \
        || { say "could not build $name $version: left out" >&2; return 0; }
    echo "$version" >"$place/made/$name"
}

for peer; do
    case $peer in
    wireguard-go)
        version=v0.0.0-20260522210424-ecfc5a8d5446
        with_go "$peer" $version 23 go install "golang.zx2c4.com/wireguard@$version"
        [ ! -e "$place/wireguard" ] || mv "$place/wireguard" "$place/wireguard-go"
        ;;
    nebula)
        version=v1.11.0
        with_go "$peer" $version 26 go install "github.com/slackhq/nebula/cmd/nebula@$version" \
            "github.com/slackhq/nebula/cmd/nebula-cert@$version"
        ;;
    tailscale)
        version=v1.98.10
        with_go "$peer" $version 26 go install "tailscale.com/cmd/tailscaled@$version" "tailscale.com/cmd/tailscale@$version"
        # Its coordination server is ours: a small one around Tailscale's own for tests.
        control=compare/peers/tailscale
        with_go tailscale-control "$(cat $control/* | sha256sum | cut -c 1-16)" 26 go install -C $control .
        ;;
    boringtun)
        version=0.7.1
        if ! made "$peer" $version; then
            say "building boringtun-cli $version"
            calm cargo install --quiet --locked --root "$place/boringtun" --version $version boringtun-cli \
                || { say "could not build boringtun-cli $version: left out" >&2; continue; }
            mv "$place/boringtun/bin/boringtun-cli" "$place"
            rm -rf "$place/boringtun"
            echo $version >"$place/made/$peer"
        fi
        ;;
    *) say "no such peer: $peer" >&2; exit 2 ;;
    esac
done
