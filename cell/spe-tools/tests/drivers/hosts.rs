//! Hosts: AltiVec, pointers of 4 bytes, memory below 4 GiB.

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
