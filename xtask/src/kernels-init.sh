#!/bin/sh
# The init of the booted test kernel. It mounts file systems, loads modules, runs those tests in /tests that the host
# names on the serial line, reports the worst exit status, and powers off. An emulated processor is slow, so the fuzz
# test checks all rows but fewer random packets there, and the replay test probes fewer moments of its day.
export PATH=/usr/sbin:/sbin:/usr/bin:/bin HOME=/tmp RUST_BACKTRACE=1 VOUCHSAFE_FUZZ_PACKETS=20000 VOUCHSAFE_REPLAY_STEP=307
busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs run /run
ip link set lo up
echo 1 >/proc/sys/net/core/bpf_jit_enable
for module in @MODULES@; do insmod "/modules/$module.ko"; done
# End the line that the firmware began.
echo
cd '@HERE@'
stty -echo
worst=0
while echo '@NEXT@' && read -r test && [ -n "$test" ]; do
    echo "# $test"
    "/tests/$test" --test-threads=1 '@FILTER@' </dev/null || worst=$?
done
echo "@EXIT@$worst"
poweroff -f
