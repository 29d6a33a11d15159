"""A guest with Linux's software iWARP (siw), and the network that it shares with our side.

Used by `run`. Must stay true: all that is made here (processes, a network namespace, a folder) ends
with the `with` block that made it; each wait has a limit, whose passing is an error.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

# Limit of a command in the guest unless given; the guest is emulated.
LIMIT_S = 120
HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = "usr/lib/x86_64-linux-gnu"
TOOLS = ("rping", "rcopy", "ucmatose", "rdma_client", "rdma_server",
         *(f"ib_{kind}_{what}" for kind in ("send", "write", "read") for what in ("lat", "bw")))
MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "crc32c_generic", "rdma_ucm", "ib_uverbs", "siw")
# Program of Debian, its package.
NEEDS = (("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("cpio", "cpio"),
         ("ip", "iproute2"), ("rdma", "iproute2"), ("modprobe", "kmod"), ("xz", "xz-utils"),
         ("dumpcap", "tshark"), ("tshark", "tshark"))
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs -o size=90% none /tmp
while read -r module; do insmod /modules/$module; done </modules/order
ip link set lo up
ip addr add ADDRESS/24 dev eth0
ip link set eth0 up
rdma link add siw0 type siw netdev eth0
mkdir -p /dev/infiniband
for device in /sys/class/infiniband_verbs/uverbs0 /sys/class/misc/rdma_cm; do
  numbers=$(cat $device/dev)
  [ -e /dev/infiniband/${device##*/} ] || mknod /dev/infiniband/${device##*/} c ${numbers%:*} ${numbers#*:}
done
cd /tmp
stty -echo
echo "@@ 0 0"
while read -r number line; do
  eval "$line"
  status=$?
  echo
  echo "@@ $number $status"
done
"""


class Failed(Exception):
    """Something is not as it must be, in one line or more."""


class Over(Failed):
    """The same, and nothing more can be tried."""


def missing():
    """Debian's packages that are missing."""
    lacking = {package for program, package in NEEDS if not shutil.which(program)}
    return sorted(lacking)


def prepared():
    """The folder with kernel, modules and programs (`module` makes it, once)."""
    made = subprocess.run([HERE / "module"], stdout=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise Failed("net/rdma/guest/module failed: see above")
    return pathlib.Path(made.stdout.strip())


def ended(process):
    """Ends a process of ours."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Net:
    """A namespace with a bridge, whose own address is that of the kernel's side."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        self.name = f"siw-{os.getpid()}"
        self.started = []

    def __enter__(self):
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        try:
            self.run("ip", "link", "set", "lo", "up")
            self.run("ip", "link", "add", "bridge", "type", "bridge")
            self.run("ip", "addr", "add", f"{self.address}/24", "dev", "bridge")
            self.run("ip", "link", "set", "bridge", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            ended(process)
        subprocess.run(["ip", "netns", "del", self.name], check=False)

    def inside(self, *command):
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def run(self, *command):
        return subprocess.run(self.inside(*command), check=True, capture_output=True, text=True).stdout

    def start(self, *command, **more):
        """A process of the namespace that ends with it."""
        process = subprocess.Popen(self.inside(*command), **more)
        self.started.append(process)
        return process

    def tap(self, name):
        self.run("ip", "tuntap", "add", "dev", name, "mode", "tap")
        self.join(name)

    def join(self, name):
        """Puts an interface on the bridge."""
        self.run("ip", "link", "set", name, "master", "bridge")
        self.run("ip", "link", "set", name, "up")

    def capture(self, interface, file):
        log = open(self.folder / "dumpcap.log", "ab")
        process = self.start("dumpcap", "-q", "-B", "64", "-i", interface, "-w", file, stdout=log, stderr=log)
        wait_for(lambda: file.exists() and file.stat().st_size > 0, 20, "dumpcap does not begin")
        return process


def wait_for(holds, limit_s, otherwise):
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            raise Failed(otherwise)
        time.sleep(0.05)


class Guest:
    """One guest; commands of its shell, one at a time."""

    def __init__(self, net, ready, folder, address, memory_mib=512, disk=None):
        self.net, self.ready, self.address = net, ready, address
        self.folder, self.memory_mib, self.disk = folder, memory_mib, disk
        self.tap = f"tap{address.rsplit('.', 1)[1]}"
        self.version = (ready / "version").read_text().strip()
        self.number = self.seen = 0
        folder.mkdir()

    def __enter__(self):
        self._initramfs()
        self.net.tap(self.tap)
        self.console = self.folder / "console"
        hardware = f"52:54:00:00:00:{int(self.address.rsplit('.', 1)[1]):02x}"
        command = ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "1",
                   "-m", self.memory_mib, "-display", "none", "-monitor", "none", "-serial", "stdio",
                   "-no-reboot", "-kernel", self.ready / "bzImage", "-initrd", self.folder / "initramfs",
                   "-append", "console=ttyS0 quiet panic=-1",
                   "-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no",
                   "-device", f"virtio-net-pci,netdev=net,mac={hardware}"]
        if self.disk:
            command += ["-drive", f"file={self.disk},if=virtio,format=raw,readonly=on"]
        self.process = self.net.start(*command, stdin=subprocess.PIPE, stdout=open(self.console, "wb"),
                                      stderr=subprocess.STDOUT)
        self._done(0, LIMIT_S)
        if self.shell("test -e /sys/class/infiniband/siw0", check=False)[0] != 0:
            raise Failed(f"siw0 is missing in the guest:\n{self.tail()}")
        return self

    def __exit__(self, *_):
        ended(self.process)

    def shell(self, line, limit_s=LIMIT_S, check=True):
        """Runs a line; its status and what it said."""
        self.number += 1
        self.process.stdin.write(f"{self.number} {line}\n".encode())
        self.process.stdin.flush()
        status, said = self._done(self.number, limit_s)
        if check and status != 0:
            raise Failed(f"the guest's `{line}` ended with {status}: {said or self.tail()}")
        return status, said

    def _done(self, number, limit_s):
        mark = re.compile(rf"^@@ {number} (\d+)\s*$", re.M)
        until = time.monotonic() + limit_s
        while True:
            text = self.console.read_bytes()[self.seen:]
            found = mark.search(text.decode(errors="replace").replace("\r", ""))
            if found:
                said = text.decode(errors="replace").replace("\r", "")[:found.start()].strip()
                self.seen += len(text)
                return int(found.group(1)), said
            if self.process.poll() is not None:
                raise Over(f"the guest has ended:\n{self.tail()}")
            if fault := re.search(rb"kernel BUG at [^\r\n]*|BUG: [^\r\n]*|Oops: [^\r\n]*", text):
                raise Over(f"the guest's kernel is at fault: {fault.group().decode(errors='replace')}")
            if time.monotonic() > until:
                raise Over(f"the guest says nothing for {limit_s} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines=12):
        text = self.console.read_bytes().decode(errors="replace").replace("\r", "")
        return "\n".join(text.splitlines()[-lines:])

    def use_module(self, variant):
        """One of siw's four modules: CRC required, peer to peer."""
        self.shell(f"rdma link del siw0; rmmod siw; insmod /modules/siw-{variant}.ko && "
                   "rdma link add siw0 type siw netdev eth0")

    def listens(self, port):
        """Waits for a listener, without a connection to it."""
        port = f"{port:04X}"
        self.shell(f'for i in $(seq 50); do grep -q ":{port} .* 0A " /proc/net/tcp /proc/net/tcp6 && break; '
                   'sleep 0.2; done', check=False)

    def _initramfs(self):
        root, source = self.folder / "root", self.ready / "root"
        for name in ("bin", "dev", "proc", "sys", "etc", "lib64", "modules", "tmp", f"{LIBRARIES}/libibverbs"):
            (root / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), root / "bin/busybox")
        (root / "etc/libibverbs.d").mkdir()
        shutil.copy(source / "etc/libibverbs.d/siw.driver", root / "etc/libibverbs.d")
        plugin = next((source / LIBRARIES / "libibverbs").glob("libsiw-*.so"))
        shutil.copy(plugin, root / LIBRARIES / "libibverbs")
        binaries = [plugin]
        for tool in TOOLS:
            shutil.copy(source / "usr/bin" / tool, root / "bin")
            binaries.append(source / "usr/bin" / tool)
        shutil.copy(shutil.which("rdma"), root / "bin")
        binaries.append(shutil.which("rdma"))
        # Threads are ended with it, which no header says.
        libraries = {str(path) for path in pathlib.Path("/", LIBRARIES).glob("libgcc_s.so.1")}
        environment = {**os.environ, "LD_LIBRARY_PATH": str(source / LIBRARIES)}
        for binary in binaries:
            said = subprocess.run(["ldd", binary], env=environment, capture_output=True, text=True).stdout
            if "not found" in said:
                raise Failed(f"{binary}: {said}")
            libraries |= set(re.findall(r"=> (/\S+)", said))
        for library in libraries:
            shutil.copy(library, root / LIBRARIES)
        (root / "lib").symlink_to("usr/lib")
        shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
        for module in self.ready.glob("siw-*.ko"):
            shutil.copy(module, root / "modules")
        self._modules(root / "modules", source)
        (root / "init").write_text(INIT.replace("ADDRESS", self.address))
        (root / "init").chmod(0o755)
        with open(self.folder / "initramfs", "wb") as image:
            files = subprocess.Popen(["find", "."], cwd=root, stdout=subprocess.PIPE)
            packed = subprocess.Popen(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, stdin=files.stdout,
                                      stdout=subprocess.PIPE)
            subprocess.run(["gzip", "-1"], stdin=packed.stdout, stdout=image, check=True)
        shutil.rmtree(root)

    def _modules(self, target, source):
        """Modules in the order of their needs."""
        order = []
        for module in MODULES:
            command = ["modprobe", "-d", source, "-S", self.version, "--show-depends", module]
            said = subprocess.run(command, capture_output=True, text=True).stdout
            for path in re.findall(r"^insmod (\S+)", said, re.M):
                path = pathlib.Path(path)
                name = path.name.removesuffix(".xz")
                if name in order:
                    continue
                order.append(name)
                if path.suffix == ".xz":
                    with open(target / name, "wb") as unpacked:
                        subprocess.run(["xz", "-dc", path], stdout=unpacked, check=True)
                else:
                    shutil.copy(path, target / name)
        (target / "order").write_text("".join(f"{name}\n" for name in order))


@contextlib.contextmanager
def workplace(keep):
    """A folder that goes with its block, unless it is kept."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="siw-guest."))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def ending_on_signals():
    """A signal unwinds, so that all is removed."""
    def end(number, _):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
