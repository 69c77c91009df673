# vm.sh KERNEL-GLOB -- CMD
cd /var/tmp/cb-lab
T=/var/tmp/cb-lab/tool
export PATH=$T/usr/bin:$T/usr/sbin:$T/bin:$T/sbin:$PATH LD_LIBRARY_PATH=$T/usr/lib/x86_64-linux-gnu:$T/lib/x86_64-linux-gnu VMRUN_ROOT=/var/tmp/cb-lab/root VMRUN_CACHE=/var/tmp/cb-lab/cache VMRUN_BUSYBOX=$T/bin/busybox TMPDIR=/var/tmp/cb-lab
k=$(ls kernels/$1*.deb); shift
sed "s|q+=(qemu-system-x86_64 |q+=(qemu-system-x86_64 -L $T/usr/share/qemu -L $T/usr/share/seabios -L $T/usr/lib/ipxe/qemu |" /work/shared/kernel-lab/vmrun.sh > vmrun.sh
exec bash vmrun.sh "$PWD/$k" "$@"
