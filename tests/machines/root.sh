# Sourced: a root of Debian's packages below build/machines/, with this checkout in it.
#
# MIRROR is the mirror of Debian's packages, debootstrap's own by default. pip's settings are those
# of this machine: its PIP_ variables, its configuration and its certificates. So is what apt thinks
# of a mirror that is behind.

# fail WHY: the one line that says what is missing, and the end.
fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# need PROGRAM PACKAGE: that program of Debian's packages.
need() {
    command -v "$1" >/dev/null || fail "needs $1: apt-get install $2"
}

# need_arm: programs for 64-bit ARM run here, emulated where the processor is another.
need_arm() {
    [ "$(uname -m)" != aarch64 ] || return 0
    need qemu-aarch64-static qemu-user-static
    need update-binfmts binfmt-support
    local formats=/proc/sys/fs/binfmt_misc
    [ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats 2>/dev/null ||
        fail "needs binfmt_misc, to run programs for ARM: $formats cannot be mounted here"
    [ -e $formats/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64 ||
        fail "needs qemu for programs for ARM: update-binfmts --enable qemu-aarch64 has failed"
}

# make_root SUITE PROCESSOR PACKAGE...
make_root() {
    local suite=$1 processor=$2 script= file option dates=()
    shift 2
    [ "$(id -u)" -eq 0 ] || fail "makes a root of Debian's packages, which only root can"
    need debootstrap debootstrap
    place=$PWD/build/machines/$suite-$processor
    if [ ! -e "$place/.made" ]; then
        rm -rf "$place"
        mkdir -p "$place/txbroker"
        # A release that is younger than debootstrap is made as the one that is never released.
        [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
        debootstrap --variant=minbase --arch="$processor" "$suite" "$place" "${MIRROR:-}" $script ||
            fail "no root of Debian's $suite for $processor: what debootstrap says is above;" \
                "MIRROR=ADDRESS names another mirror"
        touch "$place/.made"
    fi
    cp /etc/resolv.conf "$place/etc/resolv.conf"
    for option in Acquire::Check-Valid-Until Acquire::Check-Date; do
        dates+=(-o "$option=$(apt-config dump --format %v $option | grep . || echo true)")
    done
    inside dpkg --status "$@" >/dev/null 2>&1 ||
        { inside apt-get "${dates[@]}" update --quiet && inside env DEBIAN_FRONTEND=noninteractive \
            apt-get install --quiet --yes --no-install-recommends "$@"; } ||
        fail "these packages of Debian's $suite for $processor cannot be had: $*"
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -e "$file" ] || cp --dereference "$file" "$place$file"
    done
}

# put_checkout: what is committed here, without what was built.
put_checkout() {
    rm -rf "$place/txbroker"
    mkdir "$place/txbroker"
    git archive HEAD | tar -x -C "$place/txbroker"
}

# inside COMMAND...: in process and mount namespaces of its own, so that nothing is left.
inside() {
    unshare --mount --pid --fork --kill-child bash -c '
        set -e
        place=$1
        shift
        mount -t proc proc "$place/proc"
        mount --rbind /dev "$place/dev"
        exec chroot "$place" /usr/bin/env -C /txbroker HOME=/root "$@"
    ' inside "$place" "$@"
}
