# Sourced: a root of Debian's packages below build/machines/, with this checkout in it.
#
# MIRROR is the mirror of Debian's packages, debootstrap's own by default. pip's settings are those
# of this machine: its PIP_ variables, its configuration and its certificates.

# make_root NAME SUITE PROCESSOR PACKAGES
make_root() {
    place=$PWD/build/machines/$1
    if [ ! -e "$place/.made" ]; then
        rm -rf "$place"
        mkdir -p "$place"
        debootstrap --variant=minbase --arch="$3" --include="$4" "$2" "$place" ${MIRROR:+"$MIRROR"}
        touch "$place/.made"
    fi
    cp /etc/resolv.conf "$place/etc/resolv.conf"
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -e "$file" ] || cp --dereference "$file" "$place$file"
    done
}

# What is committed here, without what was built.
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
