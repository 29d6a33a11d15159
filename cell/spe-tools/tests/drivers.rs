//! The drivers as a Makefile calls them: small programs are compiled, linked, and run by a host of
//! the test's own, which stands for libspe2.
//!
//! Without an x32 ABI of the compiler's, each test reports that and passes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The drivers' folder, of a kit in the build's own temporary folder.
fn drivers() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let output = cache(&mut Command::new(program()))
            .output()
            .expect("the example runs");
        let text = String::from_utf8(output.stdout).expect("shell lines are text");
        let line = text.lines().next().expect("the first line sets PATH");
        let path = line.split('\'').nth(1).expect("the folder is quoted");
        PathBuf::from(path)
    })
}

/// The example that has the drivers' names; cargo builds it for the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in deps");
    folder.join("examples/spe-driver")
}

fn cache(command: &mut Command) -> &mut Command {
    command.env(
        "SIDECORE_SPE_CACHE",
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("spe-cache"),
    )
}

/// Runs a driver in a folder with arguments between blanks.
fn driver(folder: &Path, name: &str, arguments: &str) -> Output {
    let mut command = Command::new(drivers().join(name));
    command
        .args(arguments.split_whitespace())
        .current_dir(folder);
    cache(&mut command).output().expect("a driver starts")
}

/// Runs a driver that must succeed.
fn driven(folder: &Path, name: &str, arguments: &str) -> String {
    let output = driver(folder, name, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{name} {arguments}: {}\n{errors}",
        output.status
    );
    errors
}

/// Runs an image; returns its output and exit status.
fn ran(folder: &Path, image: &str, mailbox: &[&str]) -> (String, i32) {
    let host = folder.join("host");
    let source = programs().join("host.c");
    let compiled = Command::new("gcc")
        // Addresses that a word has room for.
        .args(["-O1", "-no-pie", "-o"])
        .arg(&host)
        .arg(source)
        .status();
    assert!(compiled.expect("gcc starts").success());
    let output = Command::new(host)
        .arg(image)
        .args(mailbox)
        .current_dir(folder)
        .output();
    let output = output.expect("the host runs");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code().unwrap_or(-1),
    )
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// A folder with the programs' sources; nothing, and a line, where x32 code cannot be compiled.
fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for file in std::fs::read_dir(programs()).expect("the programs lie beside the test") {
        let file = file.expect("a folder can be read");
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("files are copied");
    }
    std::fs::write(folder.path().join("empty.c"), "#include <stdio.h>\n")
        .expect("files are written");
    let probe = Command::new("gcc")
        .args(["-mx32", "-c", "empty.c", "-o", "probe.o"])
        .current_dir(folder.path())
        .output();
    if probe.is_ok_and(|output| output.status.success()) {
        return Some(folder);
    }
    eprintln!("skipped: gcc -mx32 needs gcc-multilib and libc6-dev-x32 (scripts/setup)");
    None
}

#[test]
fn intrinsics_are_the_spus_byte_for_byte() {
    let Some(folder) = folder() else { return };
    for level in ["-O0", "-O2"] {
        driven(
            folder.path(),
            "spu-gcc",
            // Its casts look at memory.
            &format!("--lanes=off {level} -Wall -Werror -o image intrinsics.c"),
        );
        assert_eq!(
            ran(folder.path(), "image", &[]),
            (String::new(), 0),
            "{level}"
        );
    }
}

#[test]
fn lanes_have_the_bits_of_an_spu() {
    let Some(folder) = folder() else { return };
    // Memory of bytes that holds floats is memory alone, unless exact lanes are requested.
    for (lanes, wanted) in [("auto", ""), ("exact", "memory\n")] {
        for level in ["-O0", "-O2"] {
            let options = format!("--lanes={lanes} {level} -Wall -Werror -o image lanes.c");
            driven(folder.path(), "spu-gcc", &options);
            let bad = i32::from(!wanted.is_empty());
            assert_eq!(
                ran(folder.path(), "image", &[]),
                (wanted.into(), bad),
                "{options}"
            );
        }
    }
    driven(folder.path(), "spu-gcc", "--lanes=off -o image lanes.c");
    let (output, bad) = ran(folder.path(), "image", &[]);
    assert!(bad > 10 && output.starts_with("red\n"), "{output}");
}

#[test]
fn the_library_prints_sorts_scans_and_allocates() {
    let Some(folder) = folder() else { return };
    let options = "-O3 -mwarn-reloc -Wl,-N -o image library.c -lsimdmath -lmassv -lm -lmisc";
    driven(folder.path(), "spu-gcc", options);
    let wanted = "\
7 11 4 4 255
1 2 3 5 7 8 9 
0.10000000000000001 2.500 1.0000e+300 1e+100 1.23457e+08 4.94066e-324
0 2 0.2 10000000000000000000000.000000 text
-1234567890123 0xff 10 x    ab|cd   |-0042 +7
4 42 3.25 hello 31
0.8414709848079 2.718281828459 1.4142135623731 0.46364760900081
2.302585092994 -0.3736244539876 24 3
3 4 0.841471
0 0
1 0
1 A a
Fri Feb 13 23:31:30 2009|044|PM Fri Feb 13 23:31:30 2009
0.272854 -2040798467 0.441996 a b 1
8 5
mailbox 28: 42
";
    assert_eq!(ran(folder.path(), "image", &["41"]), (wanted.into(), 5));
}

/// One source for both sides: the SDK's libraries of small functions.
#[test]
fn libraries_of_the_sdk_do_the_same_on_both_sides() {
    let Some(folder) = folder() else { return };
    let options = "-O2 -Wall -Werror -o image sdk.c -lvector -lmatrix -lsync -lspu_timer";
    driven(folder.path(), "spu-gcc", options);
    assert_eq!(ran(folder.path(), "image", &[]), (String::new(), 0));
    let options = "-m64 -O2 -Wall -Werror -o own sdk.c -lvector -lmatrix -lsync -lsim";
    driven(folder.path(), "ppu-gcc", options);
    let output = Command::new(folder.path().join("own")).output();
    let output = output.expect("the host program runs");
    assert!(output.status.success(), "{output:?}");
    driven(folder.path(), "spu-g++", "-O1 -x c++ -c sdk.c -o plus.o");
}

/// Large numbers against themselves, and code that has another place here than on an SPU.
#[test]
fn large_numbers_registers_and_printed_vectors() {
    let Some(folder) = folder() else { return };
    for level in ["-O0", "-O2"] {
        let options = format!("{level} -o image more.c -lmpm -lmc_rand -lisolation -lmisc");
        driven(folder.path(), "spu-gcc", &options);
        let wanted = "0x7 -5 text c\na bvalue c rest\n";
        assert_eq!(ran(folder.path(), "image", &[]), (wanted.into(), 0));
    }
}

#[test]
fn vectors_are_printed_by_their_elements() {
    let Some(folder) = folder() else { return };
    let wanted = "\
-1 2 30000 4|-1 2 30000 4|      -1        2    30000        4|-1   2    30000 4   |
4294967295 10 0 1|ffffffff,a,0,1|0XFFFFFFFF 0XA 0 0X1|ffffffff;0000000a;00000000;00000001
-1 2 -3 4 -5 6 -7 8|-1:+2:-3:+4:-5:+6:-7:+8|65535 2 65533 4 65531 6 65529 8
99 101 108 108 32 116 101 120 116 1 2 3 4 253 254 255|\
99 101 108 108 32 116 101 120 116 1 2 3 4 -3 -2 -1|\
63_65_6c_6c_20_74_65_78_74_1_2_3_4_fd_fe_ff
1.500000 -0.250000 100.000000 0.000000|1.50,-0.25,100.00,0.00|\
1.5e+00 -2.5e-01 1.0e+02 0.0e+00|1.5 -0.25 100 0
0.100000 -2.000000|0 -2|-5000000000 7|fffffffed5fa0e00 7
1 0
a -1 2 30000 4 0.5 1.500000 -0.250000 100.000000 0.000000 -1 2 30000 4 -1 2 30000 4 \
-1 2 30000 4 -1 2 30000 4 -1 2 30000 4 -1 2 30000 4 -1 10 0 1 9
";
    for level in ["-O0", "-O2"] {
        let options = format!("{level} -o image printed.c");
        driven(folder.path(), "spu-gcc", &options);
        assert_eq!(ran(folder.path(), "image", &[]), (wanted.into(), 0));
    }
}

#[test]
fn handlers_of_interrupts_are_the_sections_or_the_librarys() {
    let Some(folder) = folder() else { return };
    driven(folder.path(), "spu-gcc", "-DOWN -O1 -o image interrupts.c");
    let wanted = "handler 0\nhandler 1\nhandler 2\n3 12\n";
    assert_eq!(ran(folder.path(), "image", &[]), (wanted.into(), 0));
    driven(folder.path(), "spu-gcc", "-O2 -o image interrupts.c");
    let wanted = "events 20\nevents 20\nevents 20\n3 12\n";
    assert_eq!(ran(folder.path(), "image", &[]), (wanted.into(), 0));
}

/// Every header of one function stands alone, and leaves the name without the underscore free.
#[test]
fn headers_of_one_function_stand_alone() {
    let Some(folder) = folder() else { return };
    let kit = drivers().parent().expect("the kit");
    let common = std::fs::read_dir(kit.join("include/common")).expect("the kit's headers");
    let mut count = 0;
    for header in common.flatten() {
        let text = std::fs::read_to_string(header.path()).unwrap_or_default();
        let single = [
            "sidecore_gmath",
            "sidecore_matrix",
            "sidecore_misc",
            "sidecore_sync",
        ]
        .iter()
        .any(|inside| text == format!("#include <{inside}.h>\n"));
        let name = header.file_name().to_string_lossy().into_owned();
        if !single {
            continue;
        }
        count += 1;
        let function = name.trim_end_matches(".h");
        let source =
            format!("#include <{name}>\nint {function} = 1;\nvoid *own = (void *)_{function};\n");
        std::fs::write(folder.path().join(format!("{function}.c")), source).expect("written");
    }
    assert!(count > 105, "{count}");
    let sources = std::fs::read_dir(folder.path()).expect("a folder can be read");
    let mut sources = sources
        .flatten()
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            kit.join("include/common")
                .join(name.replace(".c", ".h"))
                .exists()
        });
    let sources = sources.by_ref().collect::<Vec<_>>().join(" ");
    driven(folder.path(), "spu-gcc", &format!("-c {sources}"));
}

/// Caches of 16 bytes to 32 KiB before 64 KiB of data.
#[test]
fn software_managed_caches_hold_more_than_they_have_room_for() {
    let Some(folder) = folder() else { return };
    for (name, options) in [
        ("spu-gcc", "-O0 -Wall -Werror"),
        ("spu-gcc", "-O3"),
        ("spu-g++", "-O2 -Wall -Werror -x c++"),
    ] {
        driven(folder.path(), name, &format!("{options} -o image cache.c"));
        let (output, bad) = ran(folder.path(), "image", &[]);
        let head = "cache words (read/write): 4 sets of 4 lines of 128 bytes, 2048 bytes in all\n";
        assert!(output.starts_with(head), "{options}: {output}");
        assert_eq!((output.lines().count(), bad), (6, 0), "{options}: {output}");
    }
}

/// The names of one side's vector operations on the other.
#[test]
fn operations_of_either_side_compile_for_the_other() {
    let Some(folder) = folder() else { return };
    for (driver, output) in [("spu-gcc", "image"), ("ppu-gcc", "own")] {
        driven(
            folder.path(),
            driver,
            &format!("-O1 -Wall -Werror -o {output} names.c"),
        );
    }
    driven(folder.path(), "spu-g++", "-x c++ -c -o plus.o names.c");
    driven(folder.path(), "ppu-g++", "-x c++ -c -o plus.o names.c");
    assert_eq!(ran(folder.path(), "image", &[]), (String::new(), 0));
    let own = Command::new(folder.path().join("own")).status();
    assert_eq!(own.expect("the program starts").code(), Some(0));
}

/// Headers of the kit after a program's macros of one letter, and libmisc's memory.
#[test]
fn names_of_one_letter_are_the_programs() {
    let Some(folder) = folder() else { return };
    let letters = ('a'..='z').chain('A'..='Z');
    let macros: String = letters
        .map(|letter| format!("#define {letter} 7\n"))
        .collect();
    let write = |name: &str, text: &str| {
        let text = format!("#include <stdlib.h>\n#include <string.h>\n{macros}{text}");
        std::fs::write(folder.path().join(name), text).expect("files are written");
    };
    let memory = "int main(void)
{
	char *one = _malloc_align(100, 7), *two;
	memset(one, 5, 100);
	two = _realloc_align(one, 5000, 8);
	if (((unsigned long)two & 255) || two[0] != 5 || two[99] != 5)
		return 1;
	_free_align(two);
";
    let common = "#include <libmisc.h>\n#include <libsync.h>\n#include <mutex.h>\n\
                  #include <libmatrix.h>\n#include <simdmath.h>\n#include <massv.h>\n";
    write(
        "letters_spu.c",
        &format!("#include <spu_mfcio.h>\n{common}{memory}\treturn a - 7;\n}}\n"),
    );
    driven(
        folder.path(),
        "spu-gcc",
        "-O1 -Wall -Werror -o image letters_spu.c",
    );
    assert_eq!(ran(folder.path(), "image", &[]), (String::new(), 0));
    // The time base by assembly, whole and by halves; around it registers keep their values.
    let time = "\
	unsigned long first, second, third = 99, fourth;
	asm volatile(\"mftb %0, 268\" : \"=r\"(first));
	asm volatile(\"mftb %0\" : \"=r\"(second));
	asm volatile(\"mftbu %0\" : \"=r\"(third));
	asm volatile(\"mftbl %0\" : \"=r\"(fourth));
	return second < first || third != second >> 32 || fourth - second > 100000000;
}
";
    write(
        "letters.c",
        &format!(
            "#include <altivec.h>\n#include <ppu_intrinsics.h>\n\
             {common}{memory}{time}"
        ),
    );
    driven(
        folder.path(),
        "ppu-gcc",
        "-O2 -Wall -Werror -o own letters.c",
    );
    let own = Command::new(folder.path().join("own")).status();
    assert_eq!(own.expect("the program starts").code(), Some(0));
}

/// Every operation that saturates or rounds, compared with plain numbers.
#[test]
fn operations_saturate_and_round_as_altivec_and_the_spu_do() {
    let Some(folder) = folder() else { return };
    for level in ["-O0", "-O2"] {
        let options = format!("{level} -Wall -Werror -o own saturate.c -lm");
        driven(folder.path(), "ppu-gcc", &options);
        let own = Command::new(folder.path().join("own")).output();
        let own = own.expect("the program starts");
        let printed = String::from_utf8_lossy(&own.stdout);
        assert!(own.status.success(), "{level}: {printed}");
    }
    // A cast in it looks at memory.
    let options = "--lanes=off -O2 -Wall -Werror -o image saturate.c -lm";
    driven(folder.path(), "spu-gcc", options);
    assert_eq!(ran(folder.path(), "image", &[]), (String::new(), 0));
    driven(folder.path(), "ppu-g++", "-x c++ -c -o plus.o saturate.c");
}

/// All names that the languages' and libraries' documents have, by lists next to the programs.
#[test]
fn headers_declare_every_name_of_their_documents() {
    let Some(folder) = folder() else { return };
    let kit = drivers().parent().expect("the kit");
    let macros = |path: &str| format!("#include \"{}\"\n", kit.join(path).display());
    let (spu, vectors) = (
        macros("include/spu/spu_macros.h"),
        macros("include/ppu/altivec_macros.h"),
    );
    let lists = [
        ("spu_intrinsics", "spu-gcc", "<spu_intrinsics.h>", &spu),
        ("spu_intrinsics", "ppu-gcc", "<spu2vmx.h>", &spu),
        ("spu_mfcio", "spu-gcc", "<spu_mfcio.h>", &String::new()),
        ("altivec", "ppu-gcc", "<altivec.h>", &vectors),
        ("altivec", "spu-gcc", "<vmx2spu.h>", &vectors),
        (
            "ppu_intrinsics",
            "ppu-gcc",
            "<ppu_intrinsics.h>",
            &String::new(),
        ),
    ];
    for (list, driver, header, more) in lists {
        let source = format!("#include {header}\n{more}");
        std::fs::write(folder.path().join("names.c"), source).expect("written");
        driven(folder.path(), driver, "-E -dD -o names.i names.c");
        let text = std::fs::read_to_string(folder.path().join("names.i")).expect("read");
        let found = text
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .collect::<std::collections::HashSet<_>>();
        let missing = names(list)
            .into_iter()
            .filter(|name| !found.contains(name.as_str()))
            // Channels are the SPU's alone.
            .filter(|name| {
                driver != "ppu-gcc" || !name.starts_with("SPU_R") && !name.starts_with("SPU_W")
            })
            .filter(|name| header != "<spu2vmx.h>" || !name.starts_with("MFC_"))
            .filter(|name| header != "<spu2vmx.h>" || !name.starts_with("SPU_SV"));
        let missing = missing.collect::<Vec<_>>();
        assert!(missing.is_empty(), "{driver}, {header}: {missing:?}");
    }
    // Functions can be linked.
    for (list, header) in [("simdmath", "simdmath"), ("massv", "massv")] {
        let used = |name: String| format!("\t(const void *){name},\n");
        let table = names(list).into_iter().map(used).collect::<String>();
        let source = format!(
            "#include <{header}.h>\nconst void *volatile all[] = {{\n{table}}};\n\
             int main(void) {{ return !all[0]; }}\n"
        );
        std::fs::write(folder.path().join("names.c"), source).expect("written");
        driven(
            folder.path(),
            "spu-gcc",
            "-Wall -Werror -O1 -o image names.c",
        );
        driven(folder.path(), "ppu-gcc", "-Wall -Werror -O1 -o own names.c");
    }
    let library = include_str!("../../spe/include/libspe2.h");
    for name in names("libspe2") {
        assert!(library.contains(&format!("{name}(")), "{name}");
    }
}

/// The words of a list.
fn names(list: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/names/{list}.txt"));
    let text = std::fs::read_to_string(&path).expect("the list lies beside the test");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .flat_map(str::split_whitespace)
        .map(ToString::to_string)
        .collect()
}

#[test]
fn cplusplus_has_constructors_and_virtual_functions() {
    let Some(folder) = folder() else { return };
    driven(folder.path(), "spu-g++", "-O2 -o image plus.cc");
    assert_eq!(ran(folder.path(), "image", &[]), ("9 25 6 9\n".into(), 0));
}

#[test]
fn objects_archives_and_dependencies_are_made_as_makefiles_ask() {
    let Some(folder) = folder() else { return };
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("files are written");
    };
    write(
        "part.c",
        "#include \"part.h\"\nint part(x) { return x + OFFSET; }\n",
    );
    write("part.h", "#define OFFSET 30\n");
    // No header, no type: programs of the time passed with a warning.
    write(
        "main.c",
        "main() { printf(\"%d\\n\", part(12)); return 0; }\n",
    );
    driven(folder.path(), "spu-gcc", "-O2 -MMD -c part.c");
    driven(folder.path(), "spu-gcc", "-g -S main.c -o main.s");
    driven(folder.path(), "spu-gcc", "-c main.s -o main.o");
    driven(folder.path(), "spu-ar", "-qcs libpart.a part.o");
    driven(folder.path(), "spu-gcc", "-o image main.o -L. -lpart");
    let dependencies = std::fs::read_to_string(folder.path().join("part.d")).expect("-MMD writes");
    assert!(
        dependencies.starts_with("part.o: part.c part.h"),
        "{dependencies}"
    );
    // The program itself from an archive.
    driven(folder.path(), "spu-ar", "-qcs libmain.a main.o part.o");
    driven(folder.path(), "spu-gcc", "-o image libmain.a");
    driven(folder.path(), "spu-strip", "image");
    assert_eq!(ran(folder.path(), "image", &[]), ("42\n".into(), 0));
    let left = std::fs::read_dir(folder.path()).expect("a folder can be read");
    let names = left
        .flatten()
        .map(|file| file.file_name())
        .collect::<Vec<_>>();
    assert!(
        names
            .iter()
            .all(|name| !name.to_string_lossy().ends_with(".i")),
        "{names:?}"
    );
}

#[test]
fn an_embedded_program_is_a_handle_of_the_host() {
    let Some(folder) = folder() else { return };
    driven(folder.path(), "spu-gcc", "-O2 -o image plus.cc");
    let source = "\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned int size; void *image; void *shared; } handle;
extern handle embedded;
int main(void)
{
	FILE *file = fopen(\"image\", \"rb\");
	char *bytes = malloc(1 << 20);
	size_t count = fread(bytes, 1, 1 << 20, file);
	asm volatile(\"sync\");
	return !(embedded.size == sizeof(handle) && !embedded.shared && count > 0
		 && !memcmp(embedded.image, bytes, count) && (char)-1 > 0);
}
";
    std::fs::write(folder.path().join("user.c"), source).expect("files are written");
    driven(
        folder.path(),
        "ppu-embedspu",
        "-m64 embedded image embedded.o",
    );
    driven(
        folder.path(),
        "ppu-gcc",
        "-maltivec -mcpu=cell -m64 -O2 -o user user.c embedded.o",
    );
    let status = Command::new(folder.path().join("user"))
        .current_dir(folder.path())
        .status();
    assert!(status.expect("the program starts").success());
}

/// A recipe that names gcc gets the host's driver, which finds the machine's own behind it.
#[test]
fn native_names_are_the_hosts_drivers() {
    let Some(folder) = folder() else { return };
    let text = cache(Command::new(program()).arg("--native")).output();
    let text = String::from_utf8(text.expect("the example runs").stdout).expect("text");
    std::fs::write(
        folder.path().join("old.c"),
        "#include <altivec.h>\nint main() { vector float a = (vector float)(3.0); \
         return sizeof(void *) + (int)vec_extract(a, 1); }\n",
    )
    .expect("written");
    let script = format!("{text}\ngcc -maltivec -pthread -lm old.c -o old && ./old");
    let status = cache(Command::new("sh").args(["-c", &script]))
        .current_dir(folder.path())
        .status();
    assert_eq!(status.expect("a shell").code(), Some(11));
}

/// Makefiles of the SDK's kind: targets by their names, in two orders of folders.
#[test]
fn makefiles_that_include_make_footer_build() {
    let Some(folder) = folder() else { return };
    if Command::new("make").arg("--version").output().is_err() {
        eprintln!("skipped: there is no make");
        return;
    }
    let write = |name: &str, text: &str| {
        let path = folder.path().join("project").join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders are made");
        std::fs::write(path, text).expect("files are written");
    };
    let footer = "ifdef CELL_TOP\ninclude $(CELL_TOP)/buildutils/make.footer\nendif\n";
    let host = "\
#include <stdio.h>
#include \"part.h\"
typedef struct { unsigned int size; void *image; void *shared; } handle;
extern handle job_spu, other_spu;
int main(void)
{
	return part(job_spu.size && other_spu.size && width() == 4 && sizeof(void *) == 4);
}
";
    write(
        "Makefile",
        &format!("DIRS = ppu spu\n{footer}run:\n\tppu/job\n"),
    );
    write(
        "ppu/Makefile",
        &format!(
            "PROGRAM_ppu := job\nIMPORTS := ../spu/lib_job_spu.a -lpthread $(SDKLIB)/libmisc.a\n\
             CFLAGS_job = -DRESULT=3\nINCLUDE := -I../common\nCFLAGS_xlc = -qnone\n{footer}"
        ),
    );
    write("ppu/main.c", host);
    write(
        "ppu/part.c",
        "int part(int good) { return good ? RESULT : 1; }\n",
    );
    write("common/part.h", "extern int part(int), width(void);\n");
    // C++ without its library has the width of C's pointers.
    let plus = "extern \"C\" int width() { return sizeof(void *); }\n";
    write("ppu/width.cpp", plus);
    write(
        "spu/Makefile",
        &format!(
            "PROGRAMS_spu := job_spu other_spu\nLIBRARY_embed := lib_job_spu.a\n\
             CC_OPT_LEVEL = CC_OPT_LEVEL_DEBUG\nIMPORTS := -lmisc -lsimdmath\n{footer}"
        ),
    );
    let spu = "#include <spu_mfcio.h>\nint main() { return spu_read_in_mbox(); }\n";
    write("spu/job_spu.c", spu);
    write("spu/other_spu.c", spu);
    // An object that was made for the Cell and delivered with the source.
    write("spu/job_spu.o", "\x7fELF\x01\x02\x01");
    let kit = drivers().parent().expect("the kit");
    let path = std::env::var("PATH").unwrap_or_default();
    let run = |goals: &[&str]| {
        let mut make = Command::new("make");
        make.args(goals)
            .current_dir(folder.path().join("project"))
            .env("CELL_TOP", kit.join("sdk"))
            .env("PATH", format!("{}:{path}", drivers().display()))
            .env_remove("MAKEFLAGS");
        let output = cache(&mut make).output().expect("make starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{goals:?}: {text}");
    };
    run(&[]);
    let job = folder.path().join("project/ppu/job");
    assert_eq!(Command::new(&job).status().expect("starts").code(), Some(3));
    run(&["clean"]);
    assert!(!job.exists() && !folder.path().join("project/spu/job_spu").exists());
}

#[test]
fn altivec_and_the_intrinsics_of_the_host_compile_and_agree() {
    let Some(folder) = folder() else { return };
    for options in ["-O0", "-O2 -mabi=altivec -maltivec"] {
        driven(
            folder.path(),
            "ppu-gcc",
            &format!("{options} -Wall -o host-vectors altivec.c"),
        );
        let output = Command::new(folder.path().join("host-vectors")).output();
        let output = output.expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{options}: {text}");
    }
}

#[test]
fn a_host_of_32_bits_finds_all_its_memory_below_4_gib() {
    let Some(folder) = folder() else { return };
    for (name, options) in [("ppu32-gcc", "-m32 -O2"), ("ppu-gcc", "-w")] {
        driven(
            folder.path(),
            name,
            &format!("{options} -o narrow narrow.c -lpthread"),
        );
        let status = Command::new(folder.path().join("narrow")).status();
        let status = status.expect("the program starts");
        assert_eq!(status.code(), Some(0), "{name} {options}");
    }
}

#[test]
fn a_host_of_32_bits_has_pointers_of_4_bytes() {
    let Some(folder) = folder() else { return };
    let wanted = "\
opt s 3
4 3 ./pointers 1
16 4 1 9 7
1 8
-5 16 -6 0x10 s  2.50 1 2 -7 ff
-1 x 1 2 3 4 stack -9
-12 34 56
16 zz
2 No such file or directory
1970-01-01 0
1 1 1
sin 1.841 1 B
a b
own 3
";
    for options in ["-O0", "-O2 -g -pipe"] {
        driven(
            folder.path(),
            "ppu32-gcc",
            &format!("-W -Wall -Werror {options} -o pointers pointers.c -lm"),
        );
        let output = Command::new("./pointers")
            .args(["--size=3", "left", "-v"])
            .current_dir(folder.path())
            .output()
            .expect("the program starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{options}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "to the errors\n");
        assert_eq!(output.status.code(), Some(5), "{options}");
    }
    // C++ where it is requested; its library has pointers of 8 bytes.
    let source = "\
#include <cstdio>
struct Base { virtual ~Base() {} virtual int f() { return 3; } };
struct Derived : Base { int f() { return 4; } };
int main()
{
	Base *base = new Derived;
	int result = base->f() + 10 * sizeof(void *);
	delete base;
	return result;
}
";
    std::fs::write(folder.path().join("base.cc"), source).expect("files are written");
    for (options, wanted) in [("--pointers=4", 44), ("-m32", 84), ("--pointers=8", 84)] {
        let errors = driven(
            folder.path(),
            "ppu-g++",
            &format!("{options} -Wall -Werror -o base base.cc"),
        );
        let said = errors.starts_with("note: C++ of 32 bits has pointers of 8 bytes");
        assert_eq!(said, options == "-m32", "{options}: {errors}");
        let status = Command::new(folder.path().join("base")).status();
        assert_eq!(status.expect("the program starts").code(), Some(wanted));
    }
    // Objects record their own kind, whatever the link requests.
    driven(folder.path(), "ppu-gcc", "-m32 -c pointers.c");
    driven(folder.path(), "ppu-gcc", "-o pointers pointers.o -lm");
    let status = Command::new("./pointers")
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .status();
    assert_eq!(status.expect("the program starts").code(), Some(5));
    std::fs::write(folder.path().join("wide.c"), "int wide;\n").expect("files are written");
    driven(folder.path(), "ppu-gcc", "-m64 -c wide.c");
    let errors = driven(folder.path(), "ppu-gcc", "-o mixed pointers.o wide.o -lm");
    assert!(
        errors.starts_with("warning: wide.o was compiled without -m32"),
        "{errors}"
    );
}

#[test]
fn refusals_say_why() {
    let Some(folder) = folder() else { return };
    let refused = |name: &str, arguments: &str, reason: &str| {
        let output = driver(folder.path(), name, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{name} {arguments}: {errors}"
        );
        assert!(errors.contains(reason), "{name} {arguments}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    };
    refused("spu-as", "-o a.o a.s", "SPU assembly cannot be assembled");
    refused(
        "spu-gcc",
        "-c start.S",
        "start.S: SPU assembly cannot be assembled",
    );
    refused(
        "spu-gcc",
        "--lanes=most -c empty.c",
        "--lanes=auto|exact|off",
    );
    refused("ppu-gcc", "--pointers=2 -c empty.c", "--pointers=4|8");
    refused("ppu-embedspu", "-m32 one", "usage: ppu-embedspu");
    refused(
        "ppu-embedspu",
        "one empty.c two.o",
        "empty.c is no ELF file",
    );
    let mut image = b"\x7fELF\x01\x02\x01".to_vec();
    image.resize(52, 0);
    image[18..20].copy_from_slice(&[0, 23]);
    std::fs::write(folder.path().join("real"), image).expect("files are written");
    driven(folder.path(), "spu-gcc", "-o whole library.c -lm");
    let whole = std::fs::read(folder.path().join("whole")).expect("is read");
    for bytes in [20, 51, 60, 200, whole.len() / 2] {
        std::fs::write(folder.path().join("cut"), &whole[..bytes]).expect("is written");
        refused("embedspu", "one cut two.o", "cut is cut off; link it again");
    }
    refused(
        "embedspu",
        "one real two.o",
        "compile its source with spu-gcc",
    );
}

#[test]
fn an_error_of_the_compiler_is_the_drivers() {
    let Some(folder) = folder() else { return };
    std::fs::write(folder.path().join("wrong.c"), "\nvector float x = y;\n").expect("is written");
    let output = driver(folder.path(), "spu-gcc", "-c wrong.c");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("wrong.c:2:"), "{errors}");
}

/// Pointers into the host's memory: read and written as they are.
#[test]
fn pointers_of_effective_addresses_are_pointers() {
    let Some(folder) = folder() else { return };
    let source = "\
#include <ea.h>
#include <spu_mfcio.h>
int main(unsigned long long id, unsigned long long argp)
{
	__ea char *host = (__ea char *)(unsigned int)argp;
	char own[16];
	memcpy_ea(own, host + 16, 16);
	host[3] += 100;
	return own[5] == 21 && host[3] == 103 ? strlen_ea((__ea char *)\"four\") : 1;
}
";
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("files are written");
    };
    write("far.c", source);
    driven(
        folder.path(),
        "spu-gcc",
        "-O1 -mea32 -Wall -Werror -o image far.c",
    );
    assert_eq!(ran(folder.path(), "image", &[]), (String::new(), 4));
}

/// Leftovers of a killed process in the cache go at the next one's work.
#[test]
fn folders_of_killed_processes_are_removed() {
    let Some(folder) = folder() else { return };
    let cache = folder.path().join("cache");
    let run = |name: &Path, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).current_dir(folder.path());
        command
            .env("SIDECORE_SPE_CACHE", &cache)
            .output()
            .expect("starts")
    };
    // No process has this number; one has this test's.
    let (dead, live) = (4_190_000_000_u32, std::process::id());
    let make = |path: PathBuf| {
        std::fs::create_dir_all(path.join("include")).expect("folders are made");
        path
    };
    let left = [dead, live].map(|number| make(cache.join(format!("unpacking-{number}"))));
    let output = run(&program(), &[]);
    assert!(output.status.success() && !left[0].exists() && left[1].exists());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kit = text
        .split('\'')
        .nth(1)
        .map(PathBuf::from)
        .expect("the path");
    let left = make(kit.with_file_name(format!("work-{dead}")));
    std::fs::write(folder.path().join("main.c"), "int main() { return 0; }\n").expect("written");
    let output = run(&kit.join("spu-gcc"), &["-o", "image", "main.c"]);
    assert!(output.status.success() && !left.exists(), "{output:?}");
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder for the test");
    let run = || {
        let mut command = Command::new(program());
        command
            .env("SIDECORE_SPE_CACHE", folder.path())
            .output()
            .expect("the example runs")
    };
    assert!(run().status.success());
    let kit = std::fs::read_dir(folder.path())
        .expect("the kit is there")
        .flatten()
        .next();
    let kit = kit.expect("one kit is there").path();
    std::fs::set_permissions(&kit, std::fs::Permissions::from_mode(0o777)).expect("is changed");
    let output = run();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("mode 777"), "{errors}");
}
