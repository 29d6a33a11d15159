//! `sidecore spe run` and hosts of libspe 1.x: programs that the drivers build and libspe2 runs.
//!
//! Without the compiler's x32 ABI the tests say so and pass.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::process::{Command, Output};

/// A folder for programs.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Option<Bench> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("probe.c"), "#include <stdio.h>\n").unwrap();
        let bench = Bench(folder);
        if bench.run("gcc -mx32 -c probe.c").status.success() {
            return Some(bench);
        }
        eprintln!("skipped: gcc -mx32 needs gcc-multilib and libc6-dev-x32 (scripts/setup)");
        None
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Runs lines of a shell that finds the drivers.
    fn run(&self, script: &str) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_sidecore")).parent().unwrap();
        let paths = std::env::var("PATH").unwrap_or_default();
        let script = format!("eval \"$(sidecore spe env)\"\n{script}");
        Command::new("timeout")
            .args(["--kill-after=5", "120", "bash", "-ec", &script])
            .current_dir(self.0.path())
            .env("PATH", format!("{}:{paths}", program.display()))
            .env("SIDECORE_SPE_CACHE", self.0.path().join("cache"))
            .env("TERM", "vt100")
            .output()
            .unwrap()
    }

    /// The same, which must succeed; its standard output and error.
    fn passes(&self, script: &str) -> (String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.run(script);
        let [printed, errors] =
            [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(status.success(), "{status}: {printed}{errors}");
        (printed, errors)
    }
}

/// A program of the SPU without a host of its own.
#[test]
fn a_program_that_stands_alone_gets_its_arguments() {
    let Some(bench) = Bench::new() else { return };
    bench.write(
        "alone.c",
        "#include <stdio.h>\n#include <string.h>\nint main(int count, char **words)\n{\n\
         \tprintf(\"%d %s\\n\", count, words[count - 1]);\n\treturn strlen(words[1]);\n}\n",
    );
    let (printed, _) = bench.passes(
        "spu-gcc -mstdmain -o alone alone.c\nelfspe ./alone four last || echo $?\n\
         ! elfspe ./alone.c 2> said && cat said",
    );
    let lines = printed.lines().collect::<Vec<_>>();
    assert_eq!(lines[..2], ["3 last", "4"], "{printed}");
    assert!(printed.contains("elfspe: ./alone.c: "), "{printed}");
}

/// Files, folders, clocks, maps and memory of the host, whatever pointers that has.
#[test]
fn programs_call_the_hosts_system() {
    let Some(bench) = Bench::new() else { return };
    let programs = include_str!("../spe.txtar").split("-- ").skip(1);
    for program in programs {
        let (name, text) = program.split_once(" --\n").unwrap();
        bench.write(name, text);
    }
    let (printed, _) = bench.passes(
        "spu-gcc -O2 -Wall -Werror -o files_spu files_spu.c\n\
         ppu-embedspu files_spu files_spu files_spu.o\n\
         for width in -m64 -m32 -Wall; do\n\
         ppu-gcc $width -O1 -o files files_host.c files_spu.o -lspe2 && ./files\ndone",
    );
    assert_eq!(printed, "for the host\n".repeat(6));
}

/// Waits in turn for a word, for one to be taken, and for a signal, and moves 4 KiB.
const SPU: &str = "\
#include <spu_mfcio.h>
static char data[4096] __attribute__((aligned(128)));
int main(unsigned long long id, unsigned long long argp)
{
	spu_read_in_mbox();
	mfc_get(data, argp, sizeof data, 3, 0, 0);
	mfc_write_tag_mask(1 << 3);
	mfc_read_tag_status_all();
	spu_write_out_mbox(1);
	spu_write_out_mbox(2);
	spu_read_signal1();
	return 7;
}
";

const HOST: &str = "\
#include <libspe2.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
extern spe_program_handle_t waits;
static char data[4096] __attribute__((aligned(128)));
static spe_context_ptr_t spe;
static void *thread(void *argument)
{
	unsigned int entry = SPE_DEFAULT_ENTRY;
	spe_stop_info_t stop;
	spe_context_run(spe, &entry, 0, data, 0, &stop);
	printf(\"exit %d\\n\", stop.result.spe_exit_code);
	return argument;
}
int main(void)
{
	unsigned int words[2] = { 5 };
	pthread_t id;
	spe = spe_context_create(0, 0);
	spe_program_load(spe, &waits);
	pthread_create(&id, 0, thread, 0);
	usleep(300000);
	spe_in_mbox_write(spe, words, 1, SPE_MBOX_ALL_BLOCKING);
	usleep(300000);
	while (spe_out_mbox_read(spe, words, 1) == 0)
		;
	while (spe_out_mbox_read(spe, words, 1) == 0)
		;
	usleep(300000);
	spe_signal_write(spe, SPE_SIG_NOTIFY_REG_1, 1);
	pthread_join(id, 0);
	return 3;
}
";

const BUILD: &str = "\
spu-gcc -O2 -o waits waits.c
ppu-embedspu -m64 waits waits waits.o
ppu-gcc -O2 -m64 -o host host.c waits.o -lspe2
";

/// Left end and width of the bars of a colour below the legend.
fn bars(svg: &str, colour: &str) -> Vec<(i32, i32)> {
    let number = |rect: &str, name: &str| {
        let text = rect.split_once(&format!(" {name}=\"")).unwrap().1;
        text.split('"').next().unwrap().parse::<i32>().unwrap()
    };
    let rects = svg.split("<rect").filter(|rect| rect.contains(colour));
    rects
        .filter(|rect| number(rect, "y") >= 70)
        .map(|rect| (number(rect, "x"), number(rect, "width")))
        .collect()
}

#[test]
fn a_run_is_drawn_with_its_waits_in_order() {
    let Some(bench) = Bench::new() else { return };
    bench.write("waits.c", SPU);
    bench.write("host.c", HOST);
    bench.passes(BUILD);
    let output = bench.run("sidecore spe run --engines 2 --timeline out.svg ./host");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "exit 7\n");
    let table = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines.len(),
        2,
        "no view where there is no terminal: {table}"
    );
    let column = |name: &str| {
        let index = lines[0].split_whitespace().position(|head| head == name);
        let value = lines[1].split_whitespace().nth(index.unwrap()).unwrap();
        value.parse::<f64>().unwrap()
    };
    for name in ["word_ms", "taken_ms", "signal_ms"] {
        assert!(column(name) > 100.0, "{name}: {table}");
    }
    assert_eq!((column("dma_commands"), column("got_KiB")), (1.0, 4.0));
    assert!((5.0..256.0).contains(&column("store_KiB")), "{table}");

    let svg = std::fs::read_to_string(bench.path("out.svg")).unwrap();
    // Words, words to be taken, signals; a wait that spins first is one with what follows it.
    let spans = ["#D55E00", "#E69F00", "#009E73"].map(|colour| {
        let bars = bars(&svg, colour);
        let widest = bars.iter().max_by_key(|(_, width)| *width);
        *widest.unwrap_or_else(|| panic!("{colour} is not there"))
    });
    assert!(spans.iter().all(|(_, width)| *width > 50), "{spans:?}");
    assert!(spans.is_sorted(), "{spans:?}");
    assert!(svg.contains("context 0") && svg.contains("engine 0"));
}

#[test]
fn a_terminal_shows_the_run_and_is_given_back() {
    let Some(bench) = Bench::new() else { return };
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no script (package bsdutils)");
        return;
    }
    bench.write("waits.c", SPU);
    bench.write("host.c", HOST);
    bench.passes(BUILD);
    let script = "script -qec 'stty rows 30 cols 100; sidecore spe run ./host' typescript";
    let output = bench.run(&format!("{script} < /dev/null"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let seen = std::fs::read_to_string(bench.path("typescript")).unwrap();
    for part in [
        "waits for a word",
        "waits: outbound full",
        "waits for a signal",
        "exit 7",
    ] {
        assert!(seen.contains(part), "{part}: {seen:?}");
    }
    // 18 lines scroll while it runs, all of them behind it.
    let (begin, end) = (
        seen.find("\x1b[1;18r").unwrap(),
        seen.rfind("\x1b[r").unwrap(),
    );
    assert!(
        begin < end && end < seen.find("dma_commands").unwrap(),
        "{seen:?}"
    );
}

#[test]
fn a_program_that_is_not_there_is_said() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run("sidecore spe run ./nothing-here");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("cannot run ./nothing-here"), "{said}");
}

/// Registers of problem-state areas, by the functions of `cbe_mfc.h`.
#[test]
fn registers_are_written_and_read_by_functions() {
    let Some(bench) = Bench::new() else { return };
    bench.write("waits.c", SPU);
    let direct = HOST
        .replace(
            "#include <libspe2.h>",
            "#include <libspe2.h>\n#include <cbe_mfc.h>",
        )
        .replace("300000", "1000")
        .replace(
            "spe_context_create(0, 0)",
            "spe_context_create(SPE_MAP_PS, 0)",
        )
        .replace(
            "spe_in_mbox_write(spe, words, 1, SPE_MBOX_ALL_BLOCKING);",
            "spe_spu_control_area_t *own = spe_ps_area_get(spe, SPE_CONTROL_AREA);
	_spe_in_mbox_write(own, 5);",
        )
        .replace("while (spe_out_mbox_read(spe, words, 1) == 0)\n\t\t;\n", "")
        .replace(
            "spe_signal_write(spe, SPE_SIG_NOTIFY_REG_1, 1);",
            "words[0] = _spe_out_mbox_read(own) * 10;
	words[0] += _spe_out_mbox_read(own);
	printf(\"%u %u\\n\", words[0], _spe_out_mbox_status(own));
	fflush(stdout);
	_spe_sig_notify_1_write(spe_ps_area_get(spe, SPE_SIG_NOTIFY_1_AREA), 1);",
        );
    assert!(!direct.contains("spe_out_mbox_read(spe"), "{direct}");
    bench.write("host.c", &direct);
    let output = bench.run(&format!("{BUILD}./host"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "12 0\nexit 7\n");
}

/// A host of libspe 1.x in C and in C++, and variables of libsync that both sides change.
#[test]
fn hosts_of_libspe_1_run() {
    let Some(bench) = Bench::new() else { return };
    bench.write(
        "count.c",
        "\
#include <libsync.h>
#include <spu_mfcio.h>
struct shared { mutex_ea_t lock; cond_ea_t gate; atomic_ea_t done; eaddr_t sum; };
static struct shared all __attribute__((aligned(128)));
static int sum[32] __attribute__((aligned(128)));
int main(unsigned long long id, unsigned long long argp, unsigned long long envp)
{
	int round;
	mfc_get(&all, argp, sizeof all, 0, 0, 0);
	mfc_write_tag_mask(1);
	mfc_read_tag_status_all();
	mutex_lock(all.lock);
	spu_write_out_intr_mbox(1);
	cond_wait(all.gate, all.lock);
	mutex_unlock(all.lock);
	for (round = 0; round < 200; round++) {
		mutex_lock(all.lock);
		mfc_get(sum, all.sum, 128, 0, 0, 0);
		mfc_read_tag_status_all();
		sum[0]++;
		mfc_put(sum, all.sum, 128, 0, 0, 0);
		mfc_read_tag_status_all();
		mutex_unlock(all.lock);
	}
	atomic_inc(all.done);
	spu_write_out_mbox(spu_read_in_mbox() + 1);
	return (int)envp + spu_read_signal1();
}
",
    );
    bench.write(
        "host.c",
        "\
#include <libspe.h>
#include <libsync.h>
#include <stdio.h>
#define COUNT 3
extern spe_program_handle_t count;
struct shared { mutex_ea_t lock; cond_ea_t gate; atomic_ea_t done; eaddr_t sum; };
static struct shared all __attribute__((aligned(128)));
static int words[5][32] __attribute__((aligned(128)));
int main(void)
{
	spe_gid_t group = spe_create_group(SCHED_OTHER, 0, 1);
	struct spe_event event = { group, SPE_EVENT_MAILBOX | SPE_EVENT_THREAD_EXIT, 0, 0, 0 };
	speid_t threads[COUNT], own[COUNT];
	int index, status, bad = 0;
	all.lock = (mutex_ea_t)(unsigned long)words[0];
	all.gate = (cond_ea_t)(unsigned long)words[1];
	all.done = (atomic_ea_t)(unsigned long)words[2];
	all.sum = (eaddr_t)(unsigned long)words[3];
	bad += spe_count_physical_spes() < 3 || spe_group_max(group) < 3;
	for (index = 0; index < COUNT; index++) {
		threads[index] = spe_create_thread(group, &count, &all, (void *)(long)index, -1, 0);
		bad += !threads[index] || !spe_get_ls(threads[index]);
	}
	bad += spe_get_threads(group, own) != COUNT || own[1] != threads[1];
	bad += spe_wait(threads[0], &status, WNOHANG) != 1;
	for (index = 0; index < COUNT; index++) {
		bad += spe_get_event(&event, 1, -1) != 1;
		bad += event.revents != SPE_EVENT_MAILBOX || event.data != 1;
	}
	/* All of them wait, or will, before the lock is free. */
	mutex_lock(all.lock);
	bad += (words[1][0] & 0xffff) != COUNT;
	cond_broadcast(all.gate);
	mutex_unlock(all.lock);
	while (atomic_read(all.done) < COUNT)
		sched_yield();
	bad += words[3][0] != COUNT * 200;
	for (index = 0; index < COUNT; index++) {
		bad += spe_write_in_mbox(threads[index], 10 + index) != 0;
		while (!spe_stat_out_mbox(threads[index]))
			sched_yield();
		bad += spe_read_out_mbox(threads[index]) != 11u + index;
		bad += spe_write_signal(threads[index], SPE_SIG_NOTIFY_REG_1, 40) != 0;
		bad += spe_get_event(&event, 1, -1) != 1 || event.revents != SPE_EVENT_THREAD_EXIT;
		bad += event.speid != threads[index] || event.data != 40u + index;
		bad += spe_wait(threads[index], &status, 0) != 0;
		bad += !WIFEXITED(status) || WEXITSTATUS(status) != 40 + index;
	}
	bad += spe_get_threads(group, 0) != 0 || spe_get_event(&event, 1, 1) != 0;
	bad += spe_wait(0, &status, 0) != -1 || errno != ESRCH;
	bad += spe_destroy_group(group) != 0;
	printf(\"%d\\n\", bad);
	return bad;
}
",
    );
    let (printed, _) = bench.passes(
        "spu-gcc -O2 -Wall -o count count.c -lsync
         ppu-embedspu -m64 count count count.o
         ppu-gcc -O2 -Wall -m64 -o host host.c count.o -lspe -lsync
         ./host
         cp host.c host.cc
         ppu-g++ -O2 -m64 -o plus host.cc count.o -lspe
         ./plus",
    );
    assert_eq!(printed, "0\n0\n");
}

/// Programs of SPU assembly: preprocessed, assembled, linked with an archive, embedded, and run as
/// translated code and by the interpreter.
#[test]
fn programs_of_assembly_run() {
    let Some(bench) = Bench::new() else { return };
    bench.write("mfc.h", ASSEMBLY_HEADER);
    bench.write("echo.S", ASSEMBLY);
    bench.write(
        "scale.s",
        "\t.text\n\t.global scale\nscale:\tshli $3, $10, 1\n\tbi $lr\n",
    );
    bench.write(
        "seven.s",
        "\t.global _start\n_start:\til $3, 7\n\tbrsl $lr, 1f\n1:\tstop 0x2000 + 7\n",
    );
    bench.write(
        "host.c",
        "\
#include <libspe2.h>
#include <stdio.h>
extern spe_program_handle_t echo;
static unsigned int line[16] __attribute__((aligned(128)));
int main(void)
{
	spe_context_ptr_t spe = spe_context_create(0, 0);
	unsigned int entry = SPE_DEFAULT_ENTRY, word = 1000, each;
	spe_stop_info_t stop;
	int signal, rest;
	for (each = 0; each < 16; each++)
		line[each] = __builtin_bswap32(each);
	spe_program_load(spe, &echo);
	spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ALL_BLOCKING);
	signal = spe_context_run(spe, &entry, 0, line, 0, &stop);
	spe_out_mbox_read(spe, &word, 1);
	rest = spe_context_run(spe, &entry, 0, line, 0, &stop);
	printf(\"%x %d %d %u %u %u\\n\", signal, rest, stop.result.spe_exit_code, word,
	       __builtin_bswap32(line[0]), __builtin_bswap32(line[15]));
	return spe_context_destroy(spe);
}
",
    );
    let (printed, _) = bench.passes(
        "spu-gcc -c scale.s
         spu-ar -qcs libscale.a scale.o
         spu-gcc -I. -DPUT=0x20 -O2 -Wall -o echo echo.S -L. -lscale
         ppu-embedspu -m64 echo echo echo.o
         ppu-gcc -O2 -m64 -o host host.c echo.o -lspe2
         ./host
         SIDECORE_SPE_SPU=interpreter ./host
         spu-as -o seven.o seven.s
         spu-ld -o seven seven.o
         elfspe ./seven || echo $?
         spu-objdump -d seven | grep -c brsl",
    );
    let run = "1234 0 42 2000 1000 1015\n";
    assert_eq!(printed, format!("{run}{run}7\n1\n"));
}

const ASSEMBLY_HEADER: &str = "\
#define TRANSFER(code) \\
	ila $20, line; wrch $MFC_LSA, $20; wrch $MFC_EAH, $8; wrch $MFC_EAL, $9; \\
	il $20, 64; wrch $MFC_Size, $20; il $20, 1; wrch $MFC_TagID, $20; \\
	il $20, code; wrch $MFC_Cmd, $20; il $20, 2; wrch $MFC_WrTagMask, $20; \\
	wrch $MFC_WrTagUpdate, $20; rdch $20, $MFC_RdTagStat
";

/// Adds a word of the mailbox to a line of the host's, and gives the word back twice as large.
const ASSEMBLY: &str = "\
#include \"mfc.h\"
	.text
	.global main
	.type main, @function
main:	stqd	$lr, 16($sp)
	stqd	$sp, -48($sp)
	ai	$sp, $sp, -48
	rdch	$10, $SPU_RdInMbox
	lr	$8, $4
	rotqbyi	$9, $4, 4
	TRANSFER(0x40)
	ila	$11, line
	il	$12, 4
	ila	$14, 0x10203
	shufb	$10, $10, $10, $14
	hbrr	2f, 1f
1:	lqd	$13, 0($11)
	a	$13, $13, $10
	stqd	$13, 0($11)
	ai	$11, $11, 16
	ai	$12, $12, -1
2:	brnz	$12, 1b
	TRANSFER(PUT)
	brsl	$lr, scale
	wrch	$SPU_WrOutMbox, $3
	stop	0x1234
	il	$3, 42
	lqd	$lr, 64($sp)
	ai	$sp, $sp, 48
	bi	$lr
	.size	main, . - main
	.bss
	.align	7
line:	.space	64
";
