//! Operations, libraries and headers have the bits of an SPU, on both sides.

use crate::common::*;
use std::process::Command;

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
    for lanes in ["auto", "exact -DEXACT", "warn"] {
        for level in ["-O0", "-O2"] {
            let options = format!("--lanes={lanes} {level} -Wall -Werror -o image lanes.c");
            driven(folder.path(), "spu-gcc", &options);
            let ended = ran(folder.path(), "image", &[]);
            assert_eq!(ended, (String::new(), 0), "{options}");
        }
    }
    let refused = driver(folder.path(), "spu-gcc", "--lanes=exact -c lanes.c");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let wanted = "error: lanes: elements of size 1 are read as elements of size 4 in memory";
    assert!(!refused.status.success() && said.contains(wanted), "{said}");
    driven(folder.path(), "spu-gcc", "--lanes=off -o image lanes.c");
    let (output, bad) = ran(folder.path(), "image", &[]);
    assert!(bad > 10 && output.starts_with("red\n"), "{output}");
}

/// Each kind of access has the numbers of the element order that the Cell defines.
#[test]
fn vectors_are_read_as_others_by_every_kind_of_access() {
    let Some(folder) = folder() else { return };
    for (driver, options) in [
        ("spu-gcc", "-O0 kinds.c"),
        ("spu-gcc", "-O2 -Wall -Werror kinds.c"),
        ("spu-gcc", "-O1 --lanes=exact kinds.c"),
        ("spu-g++", "-O0 kinds.cc"),
        ("spu-g++", "-O2 -Wall -Werror kinds.cc"),
    ] {
        driven(folder.path(), driver, &format!("{options} -o image"));
        let ended = ran(folder.path(), "image", &[]);
        assert_eq!(ended, (String::new(), 0), "{driver} {options}");
    }
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
fn floats_are_the_spus_bit_for_bit() {
    let Some(folder) = folder() else { return };
    let wanted = "\
3eaaaaaa 7fffffff 7fffffff ffffffff 00000000
7fffffff 00000000 00000000 7f000000
-1 0 -1 0 -1
2147483647 6 -2147483648 1
3dcccccc 3f333333 3fa66666 bdcccccc 3dcccccd
3dcccccc bf333333 40200000 3a83126e
4effffff 4f7fffff ceffffff 5f7fffff
3fddb3d7 c0000000 3fffffff 0.428571403
3eaaa800 7fffffff be7ff800 3e124800 5 0 3 405
3eaaaaaa be800000
";
    for (compiler, options) in [
        ("spu-gcc", "-O0"),
        ("spu-gcc", "-O1 -w"),
        ("spu-gcc", "-O2 -g"),
        ("spu-gcc", "-O3 -fverbose-asm --lanes=exact"),
    ] {
        let options = format!("{options} --floats=exact -o image floats.c");
        driven(folder.path(), compiler, &options);
        let result = ran(folder.path(), "image", &[]);
        assert_eq!(result, (wanted.into(), 0), "{compiler} {options}");
    }
    let refused = driver(
        folder.path(),
        "spu-g++",
        "-x c++ --floats=exact -o no floats.c",
    );
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--floats=exact takes C:"), "{said}");
    // Without the option they are this machine's.
    driven(folder.path(), "spu-gcc", "-O2 -o image floats.c");
    let (output, bad) = ran(folder.path(), "image", &[]);
    assert!(bad > 10 && output.starts_with("3eaaaaab"), "{output}");
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
    let library = include_str!("../../../spe/include/libspe2.h");
    for name in names("libspe2") {
        assert!(library.contains(&format!("{name}(")), "{name}");
    }
}

/// The words of a list.
fn names(list: &str) -> Vec<String> {
    let text = include_str!("../names.txtar");
    let heading = format!("-- {list} --");
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("-- "));
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines
        .flat_map(str::split_whitespace)
        .map(ToString::to_string)
        .collect()
}
