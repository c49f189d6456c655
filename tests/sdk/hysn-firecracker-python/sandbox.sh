# The SDK has one place for the program that it starts and one for its machines, and reads the name
# of the host's network interface from the default route. Here are these places: in a mount and a
# network namespace, beside all that is in their directories already.
# $1: a directory, $2: tine-vmm; what follows is run.
set -e
mount --make-rprivate /
beside() {
    mkdir "$2"
    mount --bind "$1" "$2"
    mount -t tmpfs tmpfs "$1"
    for entry in "$2"/*; do
        [ ! -e "$entry" ] || ln -s "$entry" "$1"
    done
}
beside /usr/local/bin "$1/bin"
beside /var/lib "$1/lib"
ln -s "$2" /usr/local/bin/firecracker
mkdir "$1/machines" /var/lib/firecracker
mount --bind "$1/machines" /var/lib/firecracker
ip link set lo up
ip tuntap add eth0 mode tap
ip address add 192.0.2.2/24 dev eth0
ip link set eth0 up
ip route add default via 192.0.2.1
shift 2
exec "$@"
