//! The steps of the tour: what a newcomer would type, in this order.
//!
//! Why here: `tour` runs and shows commands; this file lists them with the statements they prove.
//! Must stay true: a step names its statement; everything that it starts ends with it.

use super::{Namespace, Tour, text, wait_until};
use crate::output;
use anyhow::Result;
use std::io::Read;
use std::path::Path;

impl Tour {
    pub(super) fn block(&mut self, directory: &Path, quick: bool) -> Result<()> {
        self.step(
            "Pack a directory: a file system is made of it, all engines deflate it",
            "every frame's checksum is right",
        )?;
        let image = self.scratch.join("tour.img");
        self.sidecore(&["block", "pack", text(directory)?, "-o", text(&image)?])?;
        self.sidecore(&["block", "info", text(&image)?])?;
        self.sidecore(&["block", "verify", text(&image)?])?;
        self.mounted(directory, &image)?;
        self.over_nbd(&image)?;
        self.without_us(&image)?;
        self.elsewhere(directory)?;
        if !quick {
            self.as_device(&image)?;
            self.step(
                "The documents' own codec: LZO1X in a cloop image",
                "every block inflates to its length",
            )?;
            let lzo = self.scratch.join("tour.cloop");
            let format = ["--format", "cloop-lzo", "-o", text(&lzo)?];
            self.sidecore(&[&["block", "pack", text(directory)?][..], &format].concat())?;
            self.sidecore(&["block", "verify", text(&lzo)?])?;
        }
        Ok(())
    }

    pub(super) fn off_load(&mut self) -> Result<()> {
        self.step(
            "Engines for every process: a daemon owns them, others call over shared memory",
            "100,000 calls and the hash of a file came back from another process's engine",
        )?;
        let socket = self.scratch.join("daemon.sock");
        let socket = text(&socket)?;
        let daemon = self.serve(&["daemon", "--socket", socket, "--engines", "1"])?;
        let at = ["--socket", socket];
        self.sidecore(&[&["offload", "call", "empty", "--count", "100000"][..], &at].concat())?;
        // An engine's arena holds input and output: 64 MiB of the program are enough for it.
        let part = self.scratch.join("part.bin");
        let program = std::fs::File::open(&self.program)?;
        std::io::copy(
            &mut program.take(64 << 20),
            &mut std::fs::File::create(&part)?,
        )?;
        let hash = ["offload", "call", "xxh3", "--input", text(&part)?];
        self.sidecore(&[&hash[..], &at].concat())?;
        self.sidecore(&[&["top", "--once"][..], &at].concat())?;
        drop(daemon);
        // The package's program has no benches: its tour continues without them.
        if cfg!(feature = "bench") {
            self.step(
                "What it costs to reach one, and 8 workers as fibers beside processes",
                "a smoke run beside its peers; `sidecore offload bench` gives the result",
            )?;
            let groups = ["--only", "trips,edtlp", "--workers", "8"];
            self.sidecore(&[&["offload", "bench", "--quick"][..], &groups].concat())?;
        }
        self.step(
            "The papers' table of the same, beside a model of their machine",
            "the model's seconds stand beside the paper's",
        )?;
        self.sidecore(&["cell", "table1"])
    }

    pub(super) fn tlb(&mut self) -> Result<()> {
        self.step(
            "What address translation costs this machine (a quick look)",
            "levels found by themselves, beside what the processor says of itself",
        )?;
        self.sidecore(&["tlb", "--quick"])
    }

    pub(super) fn phylo(&mut self, quick: bool) -> Result<()> {
        self.step(
            "Infer a tree: sequences evolve along one, and a search finds it again",
            "rf is 0: the tree that was found is the tree that the sequences evolved along",
        )?;
        let (msa, truth) = (self.scratch.join("tour.phy"), self.scratch.join("true.nwk"));
        let prefix = self.scratch.join("tree");
        let model = "GTR{1/3/1/1/3/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";
        let taxa = [
            "--taxa",
            "24",
            "--sites",
            "2000",
            "--model",
            model,
            "--tree-out",
        ];
        let files = [text(&truth)?, "-o", text(&msa)?];
        self.sidecore(&[&["phylo", "simulate"][..], &taxa, &files].concat())?;
        let [starts, bootstraps] = if quick { ["1", "10"] } else { ["4", "50"] };
        let counts = ["--starts", starts, "--bootstraps", bootstraps];
        let files = ["--msa", text(&msa)?, "--prefix", text(&prefix)?];
        self.sidecore(
            &[
                &["phylo", "search", "--model", "GTR+G4"][..],
                &counts,
                &files,
            ]
            .concat(),
        )?;
        let best = prefix.with_extension("bestTree");
        let compared = ["phylo", "compare", text(&truth)?, text(&best)?, "--json"];
        let compared: serde_json::Value = serde_json::from_str(&self.sidecore_output(&compared)?)?;
        match compared["rf"].as_u64() {
            Some(0) => Ok(()),
            _ => self.fail("the tree that was found is not the true one"),
        }
    }

    pub(super) fn net(&mut self, quick: bool) -> Result<()> {
        self.step(
            "A TCP/IP stack on one core: the kernel's programs talk to it over TAP",
            "ping, nc and dd know nothing of it, nor does the nc that runs on it, in a network \
             namespace that is gone again",
        )?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("a TAP interface needs root; run the tour as root to see this step");
        }
        self.namespace = Some(Namespace::new()?);
        let (config, socket) = (self.scratch.join("net.toml"), self.scratch.join("net.sock"));
        let socket = text(&socket)?;
        output::file(&config, &format!("socket = \"{socket}\"\n{NET_CONFIG}"))?;
        let at = ["--socket", socket];
        let up = self.serve(&["net", "up", text(&config)?])?;
        let echo = self.serve(&[&["net", "echo", "0.0.0.0:7"][..], &at].concat())?;
        let source = self.serve(&[&["net", "source", "0.0.0.0:19"][..], &at].concat())?;
        self.tool(
            "ping",
            &["-q", "-c", "3", "-i", "0.2", "-w", "15", NET_ADDRESS],
        )?;
        let echoed = format!("echo hello, stack | timeout 20 nc -N {NET_ADDRESS} 7");
        self.tool("sh", &["-c", &echoed])?;
        let mib = if quick { "200" } else { "2000" };
        let read = format!(
            "exec 3<>/dev/tcp/{NET_ADDRESS}/19; \
             timeout 60 dd bs=1M count={mib} iflag=fullblock of=/dev/null <&3"
        );
        self.tool("bash", &["-c", &read])?;
        // An unmodified server whose sockets are the stack's, and a client of the kernel's.
        let program = text(&self.program)?.to_owned();
        let unmodified = format!(
            "echo hello from nc on the stack | \
             timeout 20 \"{program}\" net run --socket \"{socket}\" -- nc -l -N 8000 & \
             timeout 20 sh -c 'until nc -N {NET_ADDRESS} 8000 </dev/null; do sleep 0.1; done'; wait"
        );
        self.tool("sh", &["-c", &unmodified])?;
        self.sidecore(&[&["net", "status"][..], &at].concat())?;
        drop((source, echo, up));
        self.namespace = None;
        Ok(())
    }

    pub(super) fn rdma(&mut self) -> Result<()> {
        self.step(
            "RDMA over TCP: a program's memory is read and written by another one",
            "what came back in each of 10 rounds is what was sent",
        )?;
        let address = free_address()?;
        let server = self.serve(&["rdma", "serve", &address])?;
        let asked = self.sidecore(&["rdma", "ping", &address]);
        drop(server);
        asked
    }

    pub(super) fn cell(&mut self) -> Result<()> {
        self.step(
            "A program of the Cell, from its source: eight contexts, DMA, a mailbox each",
            "eight SPU programs fetched their data and sent the right sums",
        )?;
        output::file(&self.scratch.join("tour_spu.c"), include_str!("tour_spu.c"))?;
        output::file(&self.scratch.join("tour.c"), include_str!("tour_host.c"))?;
        let program = text(&self.program)?.to_owned();
        let built = format!(
            "cd \"{}\" && eval \"$(\"{program}\" spe env)\" && \
             spu-gcc -O3 -o tour_spu tour_spu.c && \
             ppu-embedspu -m64 tour_spu tour_spu tour_spu_image.o && \
             ppu-gcc -m64 -O2 -o tour tour.c tour_spu_image.o -lspe2 -lpthread && \
             \"{program}\" spe run ./tour",
            text(&self.scratch)?
        );
        self.tool("sh", &["-c", &built])
    }

    fn elsewhere(&mut self, directory: &Path) -> Result<()> {
        self.step(
            "Sign it, put it on a web server, and read it from there",
            "it was unpacked from its URL, and a changed copy was refused",
        )?;
        let folder = self.scratch.join("www");
        std::fs::create_dir_all(&folder)?;
        let [key, public, image, raw] =
            ["key", "key.pub", "www/signed.img", "signed.raw"].map(|name| self.scratch.join(name));
        let (key, public, image) = (text(&key)?, text(&public)?, text(&image)?);
        self.tool(
            "openssl",
            &["genpkey", "-algorithm", "ed25519", "-out", key],
        )?;
        self.tool("openssl", &["pkey", "-in", key, "-pubout", "-out", public])?;
        let pack = [
            "block",
            "pack",
            text(directory)?,
            "-o",
            image,
            "--sign",
            key,
        ];
        self.sidecore(&pack)?;
        let address = free_address()?;
        let folder = text(&folder)?.to_owned();
        let server = ["httpd", "-f", "-p", &address, "-h", &folder];
        let server = self.start("busybox", &server)?;
        let port = address.clone();
        wait_until(|| std::net::TcpStream::connect(&port).is_ok())?;
        let url = format!("http://{address}/signed.img");
        let trusted = ["--verify-key", public];
        self.sidecore(&[&["block", "info", &url][..], &trusted].concat())?;
        let unpack = ["block", "unpack", &url, "-o", text(&raw)?];
        let unpacked = self.sidecore(&[&unpack[..], &trusted].concat());
        std::fs::remove_file(&raw).ok();
        // One byte of the first frame is changed.
        let program = text(&self.program)?.to_owned();
        let changed = format!(
            "printf '\\377' | dd of=\"{image}\" bs=1 seek=4096 conv=notrunc status=none && \
             ! \"{program}\" block unpack {url} -o \"{}\" --verify-key \"{public}\"",
            text(&raw)?
        );
        let refused = self.tool("sh", &["-c", &changed]);
        drop(server);
        unpacked.and(refused)
    }

    fn mounted(&mut self, directory: &Path, image: &Path) -> Result<()> {
        self.step(
            "Mount it: programs that know nothing of Sidecore read it through the kernel",
            "diff finds no difference in any file",
        )?;
        let here = self.scratch.join("mnt");
        std::fs::create_dir_all(&here)?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("mounting needs root; run the tour as root to see this step");
        }
        self.sidecore(&["block", "mount", text(image)?, text(&here)?])?;
        let compared = self.tool(
            "diff",
            &["-r", "--no-dereference", text(directory)?, text(&here)?],
        );
        self.sidecore(&["block", "umount", text(&here)?])?;
        compared
    }

    fn over_nbd(&mut self, image: &Path) -> Result<()> {
        self.step(
            "Serve it over NBD: any NBD client reads it",
            "nbdcopy read it from end to end",
        )?;
        let socket = self.scratch.join("nbd.sock");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let address = format!("unix:{}", socket.display());
        let server = self.serve(&["block", "serve", text(image)?, "--nbd", &address])?;
        let copied = self.tool("nbdcopy", &[&uri, "null:"]);
        drop(server);
        copied
    }

    fn without_us(&mut self, image: &Path) -> Result<()> {
        self.step(
            "Nothing locks you in: zstd itself unpacks the image",
            "zstd's own program finds the image sound",
        )?;
        self.tool("zstd", &["-q", "-t", text(image)?])
    }

    fn as_device(&mut self, image: &Path) -> Result<()> {
        self.step("Attach it: a block device", "dd read it from end to end")?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("attaching needs root; run the tour as root to see this step");
        }
        let device = self.sidecore_output(&["block", "attach", text(image)?])?;
        let device = device.trim().to_owned();
        let input = format!("if={device}");
        let read = self.tool("dd", &[&input, "of=/dev/null", "bs=1M"]);
        self.sidecore(&["block", "detach", &device])?;
        read
    }
}

/// A loopback address whose port is free at the moment.
fn free_address() -> Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.to_string())
}

/// The stack's own address in the tour's namespace.
const NET_ADDRESS: &str = "10.77.0.2";
const NET_CONFIG: &str = "[nic]\nkind = \"tap\"\nname = \"sidecore0\"\nhost = [\"10.77.0.1/24\"]\n\
                          [stack]\naddresses = [\"10.77.0.2/24\"]\n";
