#!/bin/sh
# The init of the booted test kernel: mounts, loads modules, runs /tests/*, tells the worst exit status, powers off.
# An emulated processor is slow: fewer random packets there, all rows.
export PATH=/usr/sbin:/sbin:/usr/bin:/bin HOME=/tmp RUST_BACKTRACE=1 VOUCHSAFE_FUZZ_PACKETS=20000
busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs run /run
ip link set lo up
echo 1 >/proc/sys/net/core/bpf_jit_enable
for module in @MODULES@; do insmod "/modules/$module.ko"; done
# Ends the line that the firmware began.
echo
cd '@HERE@'
worst=0
for test in /tests/*; do
    echo "# $test"
    "$test" --test-threads=1 '@FILTER@' || worst=$?
done
echo "@EXIT@$worst"
poweroff -f
