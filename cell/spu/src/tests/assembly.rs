//! The assembler and the linker: each instruction, whole programs, source that is wrong, hostile or
//! garbage.

use super::{Words, word};
use crate::assembler::operands::{Place, Slot};
use crate::*;

/// The words of the first section of source that is right.
fn assembled(source: &str) -> Vec<u32> {
    let object = assemble(source.as_bytes(), "a.s", &mut |_| None);
    let object = object.unwrap_or_else(|error| panic!("{error} in {source}"));
    let words = object.sections[0].bytes.as_chunks::<4>().0.iter();
    words.map(|bytes| u32::from_be_bytes(*bytes)).collect()
}

/// The reason for which source is refused.
fn refused(source: &str) -> String {
    let object = assemble(source.as_bytes(), "a.s", &mut |_| None);
    object.expect_err("is refused").to_string()
}

/// An executable of sources, by objects as they are or through their files.
fn linked(sources: &[&str], through_files: bool) -> Result<Vec<u8>, LinkError> {
    let parts = sources
        .iter()
        .zip(["a.o", "b.o", "c.o"])
        .map(|(source, name)| {
            let object = assemble(source.as_bytes(), "a.s", &mut |_| None);
            let object = object.unwrap_or_else(|error| panic!("{error}"));
            let object = if through_files {
                Object::read(&object.write()).expect("its own file")
            } else {
                object
            };
            Part {
                name: name.into(),
                object,
                is_optional: false,
            }
        });
    let settings = Linking {
        strips: true,
        ..Linking::default()
    };
    link(parts.collect(), &settings)
}

/// Runs a program to its stop; gives the machine, the stop and the words that were written.
fn ran(image: &[u8]) -> (Machine, Exit, Vec<(u8, u32)>) {
    let program = Executable::parse(image).expect("an executable");
    let mut store = vec![0; STORE_BYTES];
    for (at, bytes) in program.parts() {
        store[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let mut machine = Machine::new(program.entry());
    let mut channels = Words::default();
    let exit = machine.run_with(&mut store, &mut channels, 10_000);
    (machine, exit, channels.0)
}

#[test]
fn each_instruction_is_assembled_to_its_word() {
    let mut random = 7_u32;
    for row in INSTRUCTIONS {
        let mut mask = 0;
        for slot in row.slots() {
            mask |= match *slot {
                Slot::Register(shift) => 0x7f << shift,
                Slot::Channel => 0x7f << 7,
                Slot::Number(Place::Scale(_)) => 0xff << 14,
                // Only forward: the disassembler writes addresses.
                Slot::Number(place @ (Place::Hint | Place::IndirectHint)) => place.write(0, 1020),
                Slot::Number(place) => place.write(0, -1),
                Slot::Displaced(place) => place.write(0, -1) | 0x7f << 7,
            };
        }
        let mut known = 0;
        for round in 0..60 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let fields = match round {
                0 => 0,
                1 => u32::MAX,
                _ => random ^ random >> 16,
            };
            let word = row.code << 21 | fields & mask;
            let Some(text) = disassemble(word, 0) else {
                // A scale that no assembly has.
                assert_eq!(row.format, Format::Ri8, "{}", row.name);
                continue;
            };
            assert_eq!(decode(word).map(|found| found.0.op), Some(row.op));
            assert_eq!(assembled(&text), [word], "{text}");
            known += 1;
        }
        assert!(known > 10, "{}", row.name);
    }
}

#[test]
fn names_of_assembly_alone_are_instructions() {
    let feature = |name: &str, rt: u8, ra: u8, bits: u8| word(name, rt, ra, bits, 0);
    let scaled = |name: &str, number: i32| word(name, 3, 4, 0, number);
    for (text, wanted) in [
        ("lr $3, $4", word("ori", 3, 4, 0, 0)),
        ("bit $3,$4; # comment", word("binz", 3, 4, 0, 0)),
        ("bif $3,$4 // comment", word("biz", 3, 4, 0, 0)),
        ("/* comment */ bihtd $3 , $4", feature("bihnz", 3, 4, 0x20)),
        ("bihfe $3,$lr", feature("bihz", 3, 0, 0x10)),
        ("bie $LR", feature("bi", 0, 0, 0x10)),
        ("bisled $sp,$4", feature("bisled", 1, 4, 0)),
        ("bislede $1,$4", feature("bisled", 1, 4, 0x10)),
        ("iretd", feature("iret", 0, 0, 0x20)),
        ("iret $7", feature("iret", 0, 7, 0)),
        ("syncc", feature("sync", 0, 0, 0x40)),
        ("hbrp", feature("hbr", 0, 0, 0x40)),
        ("nop", 0x4020_0000),
        ("nop $127", 0x4020_007f),
        ("lnop", 0x0020_0000),
        ("stop", 0),
        ("stop 0x2000 + 'a'", 0x2061),
        ("stopd $1,$2,$3", word("stopd", 1, 2, 3, 0)),
        ("heq $3,$4", word("heq", 0, 3, 4, 0)),
        ("hgti $3,-1", word("hgti", 0, 3, 0, -1)),
        ("fscrwr $3", word("fscrwr", 0, 3, 0, 0)),
        ("csflt $3,$4,0", scaled("csflt", 155)),
        ("cflts $3,$4,5", scaled("cflts", 168)),
        ("lqd $3,($4)", word("lqd", 3, 4, 0, 0)),
        ("stqd $3, 16*2-8+8 ($sp)", word("stqd", 3, 1, 0, 2)),
        ("wrch $ch21,$3", word("wrch", 3, 21, 0, 0)),
        ("wrch $MFC_Cmd,$3", word("wrch", 3, 21, 0, 0)),
        ("rdch $3,spu_rdinmbox", word("rdch", 3, 29, 0, 0)),
        ("rchcnt $3,$29", word("rchcnt", 3, 29, 0, 0)),
        ("ilhu $3,0x12345678@h", word("ilhu", 3, 0, 0, 0x1234)),
        ("iohl $3,%lo(0x12345678)", word("iohl", 3, 0, 0, 0x5678)),
        ("tmp = 80; ai tmp, tmp, ~0", word("ai", 80, 80, 0, -1)),
        ("br .+8", word("br", 0, 0, 0, 2)),
        ("1: brsl $lr, 1b", word("brsl", 0, 0, 0, 0)),
        ("a: hbrr a, a", word("hbrr", 0, 0, 0, 0)),
        ("rotmi $3,$4,-3", word("rotmi", 3, 4, 0, 0x7d)),
        ("il $3,-1", word("il", 3, 0, 0, -1)),
        ("ila $3,0x3ffff", word("ila", 3, 0, 0, 0x3_ffff)),
        ("stqd $3,-16($1)", word("stqd", 3, 1, 0, -1)),
        ("shufb $1,$2,$3,$4", 0xb020_c104),
        ("word 1 + 2 << 2 & 8 | 1", 10),
    ] {
        assert_eq!(assembled(text), [wanted], "{text}");
    }
}

#[test]
fn directives_do_what_their_manual_says() {
    let source = "\
.macro twice op, a=1, rest:vararg
.ifb \\op
.exitm
.endif
\\op\\()i $\\a, \\rest
.ifnb \\a
1: br 1b
.else
.err
.endif
.endm
.data
.byte 'a', '\\n', -1
.align 2
.ascii \"a;#\\101\\x42\" , \"c\"
.string \"d\"
.balign 8
.float 1.5, -2.0
.quad end - start, 0x123456789abcdef0
.short 0xffff; .hword -2
.fill 2, 2, 0x102
.set three, 3
.rept three - 1
.byte three
.set three, three + 1
.endr
.irp x, 7, 8
.byte \\x
.endr
.if three == 5 && !(1 > 2)
.p2align 4, 0xff
.elseif 1
.err
.endif
.word start, end
.text
start:
twice a, , $3, 1
twice
twice a, a=2, rest=$4, 2
end:
.align 4
";
    let object = assemble(source.as_bytes(), "a.s", &mut |_| None).expect("it is right");
    let data = object.sections.iter().find(|one| one.name == ".data");
    let data = data.expect("a section");
    let mut wanted = vec![0x61, 0x0a, 0xff, 0];
    wanted.extend(b"a;#ABcd\0");
    wanted.resize(16, 0);
    for word in [
        0x3fc0_0000,
        0xc000_0000_u32,
        0,
        16,
        0x1234_5678,
        0x9abc_def0,
    ] {
        wanted.extend(word.to_be_bytes());
    }
    wanted.extend([0xff, 0xff, 0xff, 0xfe, 1, 2, 1, 2, 3, 4, 7, 8]);
    wanted.resize(64, 0xff);
    wanted.resize(72, 0);
    assert_eq!(data.bytes, wanted);
    let places = data
        .relocations
        .iter()
        .map(|one| (one.offset, one.kind, one.addend));
    assert_eq!(places.collect::<Vec<_>>(), [(64, 6, 0), (68, 6, 16)]);
    let code = object.sections[0].bytes.as_chunks::<4>().0.iter();
    let code = code
        .map(|bytes| u32::from_be_bytes(*bytes))
        .collect::<Vec<_>>();
    let br = word("br", 0, 0, 0, 0);
    let ai = [word("ai", 1, 3, 0, 1), word("ai", 2, 4, 0, 2)];
    assert_eq!(code, [ai[0], br, ai[1], br]);
    // Each number has a place of its own.
    assert_eq!(assembled("x: .word . - x, . - x"), [0, 4]);
    // Macros that call one another have numbers of their own.
    let calls = ".macro n\n.word \\@\n.endm\n.rept 2\nn\n.endr";
    assert_eq!(assembled(calls), [0, 1]);
}

#[test]
fn programs_of_several_sources_are_linked_and_run() {
    // Adds 4 x 4 matrices of words, row by row, and writes the sums of the columns.
    let main = "\
        .global main
main:   ila     $10, left
        ila     $11, right
        il      $12, 0
        il      $13, 64
        il      $14, 0
        hbrr    2f, 1f
1:      lqx     $15, $10, $12
        lqx     $16, $11, $12
        a       $14, $14, $15
        a       $14, $14, $16
        ai      $12, $12, 16
        ceq     $17, $12, $13
2:      brz     $17, 1b
        wrch    $SPU_WrOutMbox, $14
        ilhu    $18, count@h
        iohl    $18, count@l
        lqd     $19, 0($18)
        lqr     $20, count
        stqd    $lr, 16($sp)
        brsl    $lr, check
        il      $3, 42
        brsl    $lr, exit
";
    let data = "\
        .data
        .align  7
        .global left, right, count
left:   .word   1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4
right:  .rept   4
        .word   10, 20, 30, 40
        .endr
        .comm   count, 16, 16
        .text
        .global check
        .type   check, @function
check:  ceq     $3, $19, $20
        bi      $lr
        .size   check, . - check
";
    let image = linked(&[main, data], false).expect("a program");
    let (machine, exit, words) = ran(&image);
    assert_eq!(exit, Exit::Stop(0x202a));
    assert_eq!(words, [(28, 44)]);
    assert_eq!(machine.register(14), Quadword([44, 88, 132, 176]));
    assert_eq!(machine.register(0).0[0] & 3, 0);
    // Through the files of objects, in which local symbols come first.
    assert_eq!(linked(&[main, data], true), Ok(image.clone()));
    let text = listing(&image).expect("its sections");
    assert!(
        text.contains("hbrr\t0x") && text.contains("wrch\t$ch28, $14"),
        "{text}"
    );
    // Without a section the symbols are missing, and two definitions are one too many.
    let lost = linked(&[main], false).expect_err("no matrices").to_string();
    assert_eq!(lost, "a.o: left is not defined");
    let twice = linked(&[main, data, data], false).expect_err("two of each");
    assert!(
        twice.to_string().ends_with("is defined in b.o and in c.o"),
        "{twice}"
    );
    let none = linked(&["start: nop"], false)
        .expect_err("no main")
        .to_string();
    assert!(none.contains("main is defined"), "{none}");
    let large = ".global main; main: .space 0x30000; .data; .space 0x20000";
    let large = linked(&[large], false).expect_err("too large");
    assert!(matches!(large, LinkError::TooLarge(_)), "{large}");
    let far = ".global main, x; main: ila $3, x - 0x1000; .data; x: .word 0";
    let far = linked(&[far], false).expect_err("below 0").to_string();
    assert!(far.starts_with("a.o: .text+0x0: -"), "{far}");
}

#[test]
fn wrong_source_is_refused_with_its_line() {
    for (source, wanted) in [
        (
            "nop\n\nadd $3,$4",
            "a.s:3: `add $3,$4` is no instruction of the SPU",
        ),
        (
            "# 7 \"b.S\"\nil $3, 40000",
            "b.S:7: 40000 is not between -32768 and 32767",
        ),
        ("a $3,$4", "a.s:1: a takes 3 operands, not 2"),
        ("a $3,$4,$128", "a.s:1: `128` is no register"),
        ("a $3,$4,5+x", "a.s:1: `+x` is left over"),
        (
            "il $3,$4",
            "a.s:1: `$4`: a register where a number must stand",
        ),
        ("x: nop; x: nop", "a.s:1: x is defined twice"),
        (
            "br 1f",
            "a.s:1: a label that is a number is not defined behind",
        ),
        ("br 1b", "a.s:1: there is no label 1 before"),
        (".if 1", "a.s:1: .if without .endif"),
        (
            ".frobnicate",
            "a.s:1: the directive .frobnicate is not known",
        ),
        (
            ".byte 1; nop",
            "a.s:1: an instruction begins at a multiple of 4 bytes; use .align 2",
        ),
        (".bss; .word 1", "a.s:1: .bss has only zeros"),
        (".word 1/0", "a.s:1: division by zero"),
        (".include \"none\"", "a.s:1: cannot read none"),
        ("shli $3,$4,128", "a.s:1: 128 is not between -64 and 127"),
        ("ai $3,$4,512", "a.s:1: 512 is not between -512 and 511"),
        (
            "lqd $3,8192($4)",
            "a.s:1: 8192 is not between -8192 and 8191",
        ),
        ("ila $3,-1", "a.s:1: -1 is not between 0 and 262143"),
    ] {
        assert_eq!(refused(source), wanted, "{source}");
    }
}

/// Source that asks for endless work or memory.
#[test]
fn hostile_source_is_refused_soon() {
    let deep = format!(".word {}1", "(".repeat(100_000));
    let long = format!(".word {}1", "1+".repeat(100_000));
    let doubling = (0..64).map(|n| format!(".set s{n}, s{0}+s{0}\n", n + 1));
    let doubling = doubling.collect::<String>() + ".word s0";
    let many = format!(".macro m {}\n.endm", "a,".repeat(1_000));
    for source in [
        ".macro m\nm\nm\n.endm\nm",
        ".macro m a\nm \\a\\a\\a\n.endm\nm xxxxxxxx",
        ".rept 1000000000\n.space 4096\n.endr",
        ".rept 1000000000\n.rept 1000000000\n.space 4096\n.endr\n.endr",
        ".space 1000000000000",
        ".fill 1000000000, 8, 1",
        ".fill 9223372036854775807, 8, 1",
        ".org 0x7fffffffffffffff",
        ".align 60",
        ".balign 0x4000000000000000",
        ".comm x, 0x7fffffffffffffff",
        ".set a, b; .set b, a; .word a",
        ".macro",
        ".rept 3",
        ".word 0x1ffffffffffffffff",
        ".if (",
        ".ascii \"",
        "\"",
        ".word '",
        ".quad -9223372036854775808 / -1 % 0",
        &deep,
        &long,
        &doubling,
        &many,
    ] {
        assert!(refused(source).starts_with("a.s:"), "{source:.40}");
    }
    // An empty one ends at once.
    assert_eq!(assembled(".rept 1000000000000\n.endr\nnop").len(), 1);
}

#[test]
fn garbage_never_panics() {
    let seed = "x: .macro m a\n.byte \\a,'b'\n.endm\n m 1;.irp y,1,2\n.word \\y@ppu-1f\n.endr\n\
        1: lqd $3,x@l-(4<<1)($sp) # c\n.if 1>=2;.else;hbrr 1b,x;.endif;.section .d,\"aw\",@nobits";
    let mut random = 3_u32;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(random >> 8).unwrap_or(0) % below
    };
    for _ in 0..3_000 {
        let mut text = seed.as_bytes().to_vec();
        for _ in 0..=next(6) {
            let (at, from) = (next(text.len()), next(text.len()));
            match next(4) {
                0 => text[at] = u8::try_from(next(256)).unwrap_or(0),
                1 => text[at] = text[from],
                2 => drop(text.splice(at..at, seed.bytes().skip(from).take(9))),
                _ => text.truncate(at.max(8)),
            }
        }
        if let Ok(object) = assemble(&text, "a.s", &mut |_| None) {
            let object = Object::read(&object.write()).expect("its own file");
            let part = Part {
                name: "a.o".into(),
                object,
                is_optional: false,
            };
            let _ = link(vec![part], &Linking::default());
        }
    }
    let source = ".global main; main: brsl $lr, f; .data; .word main; .comm f, 8; .bss; .space 9";
    let file = assemble(source.as_bytes(), "a.s", &mut |_| None).expect("it is right");
    let file = file.write();
    for at in 0..file.len() {
        assert!(Object::read(&file[..at]).is_err() || at > file.len() - 40);
        let mut other = file.clone();
        other[at] ^= if at % 2 == 0 { 0xff } else { 0x01 };
        let _ = listing(&other);
        if let Ok(object) = Object::read(&other) {
            let name = "a.o".into();
            let is_optional = false;
            let part = Part {
                name,
                object,
                is_optional,
            };
            let _ = link(vec![part], &Linking::default());
        }
    }
}
