//! Every reader of untrusted bytes, under a fuzzer.
//!
//! [`TARGETS`] lists one function for each: it takes any bytes, and panics, hangs or reads wrong
//! memory only where there is a fault. The same functions are driven three ways:
//!
//! - by libFuzzer with AddressSanitizer, guided by coverage (`fuzz_targets`, `scripts/fuzz`);
//! - over the corpora in the tree on stable Rust (`tests/replay.rs`, in `cargo test`);
//! - from seeds for a bounded number of inputs (`src/bin/seeded`, `scripts/fuzz --quick`).
//!
//! Each target has a module here, with its seeds and its checks. They use the crates' public
//! interface; what of it is there for a target alone is hidden from a crate's documentation and
//! says which target uses it.

pub mod daemon;
pub mod doors;
pub mod erofs;
pub mod images;
pub mod layers;
pub mod lzo1x;
pub mod nbd;
pub mod overlay;
pub mod phylo;
pub mod rdma;
pub mod remote;
pub mod rings;
pub mod seeds;
pub mod sockets;
pub mod stack;
pub mod zstd;

use sidecore_cell_sim::Machine;

/// A target: its name, which is also its corpus's folder in an archive, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 24] = [
    ("alignment", alignment),
    ("checkpoint", checkpoint),
    ("configuration", configuration),
    ("daemon", daemon),
    ("doors", doors),
    ("drill", drill),
    ("erofs", erofs),
    ("images", images),
    ("layers", layers),
    ("lzo1x", lzo1x),
    ("machine", machine),
    ("model", model),
    ("nbd", nbd),
    ("newick", newick),
    ("nexus", nexus),
    ("overlay", overlay),
    ("partitions", partitions),
    ("rdma", rdma),
    ("remote", remote),
    ("rings", rings),
    ("search_state", search_state),
    ("sockets", sockets),
    ("stack", stack),
    ("zstd", zstd),
];

/// An alignment: PHYLIP, FASTA or NEXUS.
pub fn alignment(data: &[u8]) {
    phylo::alignment(data);
}

/// A checkpoint of a tree search, with and without its lines' check sums.
pub fn checkpoint(data: &[u8]) {
    phylo::checkpoint(data);
}

/// Configuration files of `sidecore net up`.
pub fn configuration(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        // One that is refused is no fault.
        let _ = sidecore_net::setup::try_out(text);
    }
}

/// Shared memory of the off-loading daemon, and its messages: a client that overwrites it.
pub fn daemon(data: &[u8]) {
    daemon::fuzz_daemon(data);
}

/// Names, links, addresses and control messages that reach a supervisor of programs.
pub fn doors(data: &[u8]) {
    doors::fuzz_doors(data);
}

/// A packet script: read; and played, where it is short.
pub fn drill(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if sidecore_net_drill::parse("fuzz", text).is_ok() && data.len() < PLAYED_BYTES_MAX {
        // A script that does not match is no fault.
        let _ = sidecore_net_drill::run("fuzz", text);
    }
}

/// The file system inside an image, as `mount --rootless` reads it.
pub fn erofs(data: &[u8]) {
    erofs::fuzz_erofs(data);
}

/// A compressed image.
pub fn images(data: &[u8]) {
    images::fuzz_image(data);
}

/// A layer of an image of containers, its index, or the file that names mirrors.
pub fn layers(data: &[u8]) {
    layers::fuzz_layer(data);
}

/// An LZO1X stream, decompressed in two ways.
pub fn lzo1x(data: &[u8]) {
    use lzo1x::Differ;
    thread_local! {
        static DIFFER: std::cell::RefCell<Differ> = std::cell::RefCell::new(Differ::new());
    }
    DIFFER.with_borrow_mut(|differ| differ.compare(data));
}

/// A description of a modelled machine.
pub fn machine(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(machine) = Machine::parse("fuzz", text)
    {
        assert!(machine.threads() > 0, "a machine without threads was taken");
    }
}

/// A model's name.
pub fn model(data: &[u8]) {
    phylo::model(data);
}

/// An NBD dialogue: its first byte decides how the rest arrives.
pub fn nbd(data: &[u8]) {
    nbd::fuzz_dialogue(data);
}

/// Trees in Newick's notation.
pub fn newick(data: &[u8]) {
    phylo::newick(data);
}

/// A NEXUS file behind its first word.
pub fn nexus(data: &[u8]) {
    phylo::nexus(data);
}

/// An overlay's file: its superblock, log and slots.
pub fn overlay(data: &[u8]) {
    overlay::fuzz_overlay(data);
}

/// A file of partitions.
pub fn partitions(data: &[u8]) {
    phylo::partitions(data);
}

/// The memory between a supervisor and its programs, in which either side writes any word.
pub fn rings(data: &[u8]) {
    rings::fuzz_rings(data);
}

/// A peer of a queue pair, checked against a model of its permitted actions.
pub fn rdma(data: &[u8]) {
    rdma::fuzz_stream(data);
}

/// A remote server: heads, bodies and documents of HTTP, stores and registries.
pub fn remote(data: &[u8]) {
    remote::fuzz_answer(data);
}

/// A search's saved state.
pub fn search_state(data: &[u8]) {
    phylo::search_state(data);
}

/// Requests of an application over shared memory, to the stack's engine.
pub fn sockets(data: &[u8]) {
    sockets::fuzz_requests(data);
}

/// Frames, time and an application: all events of a stack.
pub fn stack(data: &[u8]) {
    stack::fuzz_stack(data);
}

/// zstd frames, decoded in two ways.
pub fn zstd(data: &[u8]) {
    zstd::compare(data);
}

/// The longest script that is played.
const PLAYED_BYTES_MAX: usize = 4096;
