//! Host programs in C with SPU programs, as users write them: each host program checks libspe2's
//! documented behaviour of its calls.

#![cfg(target_arch = "x86_64")]

mod common;

use common::{Bench, passes};

#[test]
fn words_and_data_go_both_ways() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("echo"));
}

#[test]
fn faults_end_the_program_and_not_the_process() {
    let Some(bench) = Bench::new() else { return };
    // Without it accesses outside of the store are done within.
    let said = passes(bench.pair("faults").env("SIDECORE_SPE_STRICT", "1"));
    for line in [
        "invalid instruction at 0x",
        "access outside of the local store at 0x",
        "arithmetic fault at 0x",
        "the stack ran out of the local store",
    ] {
        assert!(said.contains(line), "{line} not in {said}");
    }
}

#[test]
fn accesses_outside_of_the_store_are_done_within() {
    let Some(bench) = Bench::new() else { return };
    let said = passes(&mut bench.pair("stray"));
    let lines = said.matches("address 0x30: done at 0x00030").count();
    assert_eq!(lines, 4, "{said}");
}

/// Relative relocations as a linker packs them, and as it lists them.
#[test]
fn packed_relocations_are_applied() {
    let Some(bench) = Bench::new() else { return };
    let host = bench.host("stray_host");
    for (option, packed) in [
        ("-Wl,-z,pack-relative-relocs", true),
        ("-Wl,-z,nopack-relative-relocs", false),
    ] {
        let image = bench.spu_with("relr_spu", &[option]);
        let mut readelf = std::process::Command::new("readelf");
        let table = readelf.arg("-d").arg(&image).output();
        let table = table.expect("binutils are there");
        let has = String::from_utf8_lossy(&table.stdout).contains("(RELR)");
        if packed && !has {
            eprintln!("the linker packs no relocations: not tested");
            continue;
        }
        assert_eq!(has, packed);
        passes(std::process::Command::new(&host).arg(image));
    }
}

#[test]
fn faults_of_the_host_stay_the_hosts() {
    let Some(bench) = Bench::new() else { return };
    let mut host = std::process::Command::new(bench.host("signal_host"));
    host.env("SIDECORE_SPE_STRICT", "1");
    passes(host.arg(bench.spu("faults_spu")));
}

#[test]
fn stops_callbacks_and_registers() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("arguments"));
}

#[test]
fn transfers_lists_lines_events_and_proxy_commands() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("dma"));
}

/// A token goes round a thousand contexts on two engines; all count on one line with the host.
/// They take no descriptors of it.
#[test]
fn a_thousand_contexts_on_two_engines() {
    let Some(bench) = Bench::new() else { return };
    let ring = bench.pair("ring");
    let mut host = std::process::Command::new("sh");
    host.args(["-c", "ulimit -n 32; exec \"$0\" \"$@\""])
        .arg(ring.get_program())
        .args(ring.get_args())
        .args(["1000", "10", "2"])
        .env("SIDECORE_SPE_ENGINES", "2");
    passes(&mut host);
}

#[test]
fn a_ring_of_few() {
    let Some(bench) = Bench::new() else { return };
    let mut host = bench.pair("ring");
    host.args(["3", "2000", "4"])
        .env("SIDECORE_SPE_ENGINES", "4");
    passes(&mut host);
}

#[test]
fn mailboxes_signals_gangs_and_their_errors() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("mailbox"));
}

#[test]
fn plain_loads_and_stores_reach_the_registers_of_areas() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("area"));
}

#[test]
fn events_by_their_handler() {
    let Some(bench) = Bench::new() else { return };
    let mut host = std::process::Command::new(bench.host("events_host"));
    passes(host.arg(bench.spu("mailbox_spu")));
}

/// On one engine as well, where the programs that wait keep it from one another.
#[test]
fn events_interrupt_programs_that_never_look() {
    let Some(bench) = Bench::new() else { return };
    let (host, spu) = (bench.host("interrupt_host"), bench.spu("interrupt_spu"));
    for engines in ["1", "6"] {
        let mut command = std::process::Command::new(&host);
        passes(command.arg(&spu).env("SIDECORE_SPE_ENGINES", engines));
    }
}

#[test]
fn busy_programs_share_an_engine_and_die_with_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let Some(bench) = Bench::new() else { return };
    let (host, spu) = (bench.host("busy_host"), bench.spu("mailbox_spu"));
    let run = |how: &str| {
        let mut host = std::process::Command::new(&host);
        host.arg(&spu).arg(how).env("SIDECORE_SPE_ENGINES", "1");
        host.output().expect("started")
    };
    let output = run("returns");
    assert!(output.status.success(), "{output:?}");
    let output = run("killed");
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
}

/// Hosts of libspe 1.x, by the header that stands above libspe2; on one engine, which a stopped
/// program has.
#[test]
fn signals_and_events_of_libspe_1() {
    let Some(bench) = Bench::new() else { return };
    let headers = concat!("\n", include_str!("../../spe-tools/ppu/include.txtar"));
    let header = headers.split("\n-- include/host/libspe.h --\n").nth(1);
    let header = header.and_then(|rest| rest.split("\n-- ").next());
    bench.write("libspe.h", header.expect("the header"));
    let (host, spu) = (bench.host("legacy_host"), bench.spu("mailbox_spu"));
    for engines in ["1", "6"] {
        let mut command = std::process::Command::new(&host);
        passes(command.arg(&spu).env("SIDECORE_SPE_ENGINES", engines));
    }
}

#[test]
fn files_that_are_no_programs_are_refused_with_a_reason() {
    use std::os::unix::fs::PermissionsExt;
    let Some(bench) = Bench::new() else { return };
    let host = bench.host("refuse_host");
    let good = std::fs::read(bench.spu("echo_spu")).expect("built");
    let at = |name: &[u8]| {
        let found = good.windows(name.len()).position(|window| window == name);
        found.expect("the note")
    };
    let note = at(b"Sidecore-SPU\0");
    let changed = |place: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[place] = byte;
        bytes
    };
    // Big-endian machine 23, as the real SPU's files have it.
    let mut real = changed(5, 2);
    real[18..20].copy_from_slice(&[0, 23]);
    let cases = [
        (real, "of the SPU, not an executable"),
        (changed(0, 0), "not an ELF file"),
        (changed(18, 40), "for machine 40, not x32"),
        (changed(16, 2), "not position-independent"),
        (changed(note, b'X'), "no note names ABI version 1"),
        (changed(note + 16, 2), "built for version 2 of the ABI"),
        (
            good[..60].to_vec(),
            "cut off or damaged at its program headers",
        ),
        (good[..20].to_vec(), "cut off or damaged at its header"),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = std::process::Command::new(&host);
    for (index, (bytes, _)) in cases.iter().enumerate() {
        let path = folder.path().join(index.to_string());
        std::fs::write(&path, bytes).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, all).expect("executable");
        command.arg(path);
    }
    command.arg(&host).arg(bench.spu("large_spu"));
    let said = passes(&mut command);
    let reasons = cases.iter().map(|(_, reason)| *reason);
    let others = ["a 64-bit executable", "bytes of a local store of 262144"];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), cases.len() + others.len(), "{said}");
    for (line, reason) in lines.iter().zip(reasons.chain(others)) {
        assert!(line.contains(reason), "{line}: {reason}");
    }
}
