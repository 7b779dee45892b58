#!/bin/sh
# Boots systemd as process 1 of namespaces of its own, in a network namespace that the caller has entered:
#   boot.sh outer ROOT CGROUP PIDFILE
set -e
case $1 in
outer)
    # If the test ends, the kernel ends this process; then process 1, and with it every process of the machine.
    exec setpriv --pdeathsig KILL -- unshare --mount --propagation private --uts --ipc --pid --fork --kill-child -- "$0" first "$2" "$3" "$4"
    ;;
first)
    # The kernel writes its own number of this process into the host's /proc, which is still mounted.
    read -r pid _ </proc/self/stat
    echo "$pid" >"$4"
    # Only processes of the machine may be in the control group, because systemd divides the group.
    echo 0 >"$3/cgroup.procs"
    exec unshare --cgroup -- "$0" boot "$2"
    ;;
esac
root=$2
mount --bind "$root" "$root"
cd "$root"
# The machine must not change settings of the host's kernel, except those of its own network namespace.
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
mount -t sysfs sysfs sys
mount -o remount,bind,ro sys
mount -t bpf bpf sys/fs/bpf
mount -t cgroup2 cgroup sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
    numbers=${device#*:}
    mknod -m 666 "dev/${device%%:*}" c "${numbers%:*}" "${numbers#*:}"
done
pivot_root . mnt
# systemd learns from this variable that it runs in a container, and leaves the kernel's settings alone.
exec env -i container=lab PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot . /bin/sh -ec 'umount -l /mnt; exec /lib/systemd/systemd --unit=basic.target'
