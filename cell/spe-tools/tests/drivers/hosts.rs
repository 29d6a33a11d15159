//! Hosts: AltiVec, pointers of 4 bytes, memory below 4 GiB.
//!
//! Objects, archives, embedded programs and makefiles, as the SDK made them.

use crate::common::*;
use std::process::Command;

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

/// Assembly of the SPU itself, as Makefiles assemble, link and embed it.
#[test]
fn assembly_becomes_programs_of_the_spu_itself() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("files are written");
    };
    write("number.h", "#define NUMBER 3\n");
    write(
        "main.S",
        "#include \"number.h\"\n#ifndef OTHER\n#error no OTHER\n#endif\n\
         .global main\nmain: il $3, NUMBER + OTHER\n\tbr part\n",
    );
    write("part.s", ".global part\npart: ai $3, $3, first\n\tbi $lr\n");
    driven(folder, "spu-gcc", "-O2 -MMD -DOTHER=4 -c main.S -o main.o");
    let dependencies = std::fs::read_to_string(folder.join("main.d")).expect("-MMD writes");
    assert!(dependencies.starts_with("main.o: main.S"), "{dependencies}");
    driven(folder, "spu-as", "--defsym first=1 -o part.o part.s");
    driven(folder, "spu-ar", "-qcs libpart.a part.o");
    driven(folder, "spu-gcc", "-o image main.o -L. -lpart -lm");
    driven(folder, "spu-elf-ld", "-o linked main.o libpart.a");
    let head = |name: &str| std::fs::read(folder.join(name)).expect("is read")[16..20].to_vec();
    assert_eq!(head("main.o"), [0, 1, 0, 23]);
    assert_eq!(head("image"), [0, 2, 0, 23]);
    assert_eq!(head("linked"), [0, 2, 0, 23]);
    driven(folder, "ppu-embedspu", "-m64 image image embedded.o");
    let listed = driver(folder, "spu-objdump", "-d image");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("<part>:"), "{listed}");
    // Errors name the source's line, also behind the preprocessor.
    write("wrong.S", "#define A 1\nnop\n il $3, A, 2\n");
    write("lost.s", ".global main\nmain: brsl $lr, nowhere\n");
    for (arguments, wanted) in [
        ("-c wrong.S", "wrong.S:3: il takes 2 operands, not 3"),
        ("-o lost lost.s", "lost.s: nowhere is not defined"),
        ("-o lost part.s", "nor main is defined"),
        ("-o lost main.o -lnone", "cannot find -lnone"),
    ] {
        let output = driver(folder, "spu-gcc", arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {errors}");
        assert!(errors.contains(wanted), "{arguments}: {errors}");
    }
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
