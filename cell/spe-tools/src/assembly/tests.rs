//! Statements and their translations.

use super::*;

fn translated(source: &str) -> (String, Vec<String>) {
    let found = translate(source.as_bytes()).expect("there is something to say");
    let text = String::from_utf8(found.source).expect("text stays text");
    (text, found.warnings)
}

#[test]
fn statements_of_the_powerpc_are_c() {
    let source = "int f(int *p) {\n int old, new;\n __asm__ volatile(\"1: lwarx %0,0,%2\\n\"\n\
                  \" addi %1,%0,1\\n stwcx. %1,0,%2\\n bne- 1b\" : \"=&r\"(old), \"=&r\"(new)\n\
                  : \"r\"(p) : \"cc\", \"memory\");\n return old;\n}\n";
    let (text, warnings) = translated(source);
    assert_eq!(warnings, Vec::<String>::new());
    assert!(!text.contains("lwarx"), "{text}");
    assert!(text.contains("goto __sidecore_l0"), "{text}");
    assert_eq!(text.matches('\n').count(), source.matches('\n').count());
}

#[test]
fn what_is_not_the_powerpcs_stays_without_a_word() {
    for source in [
        "__asm__(\"sync\");\n",
        "void f(void) { asm volatile(\"rdtsc\" : \"=A\"(x)); }\n",
        "void f(void) { asm(\"add %1, %0\" : \"+r\"(x) : \"r\"(y)); }\n",
        "void f(void) { asm volatile(\"\" : : : \"memory\"); }\n",
        "void f(void) { register long x asm(\"r3\"); }\n",
        "extern \"C\" { __asm__(\"sync\"); }\n",
    ] {
        assert!(translate(source.as_bytes()).is_none(), "{source}");
    }
}

#[test]
fn what_is_not_known_is_said_once_and_stays() {
    let source = "# 1 \"a.c\"\nvoid f(void) {\n asm(\"mr %0,%1\\n vaddfp 1,2,3\" : \"=r\"(x)\n\
                  : \"r\"(y)); }\n";
    let (text, warnings) = translated(source);
    assert_eq!(text, source);
    assert_eq!(
        warnings,
        ["a.c:2: warning: assembly: `vaddfp` is not known here"]
    );
    let source = "void f(void) {\n asm(\"mr %0,5\\n sync\" : \"=r\"(x)); asm(\"sync\");\n\
                  asm(\"extsb %0,%1\" : \"=r\"(x) : \"v\"(y)); }\n";
    let (text, warnings) = translated(source);
    assert_eq!(
        warnings,
        [
            ":2: warning: assembly: `mr` with these operands is not known here",
            ":3: warning: assembly: `extsb` with these operands is not known here",
        ]
    );
    assert!(text.contains("__sync_synchronize"), "{text}");
}

#[test]
fn a_branch_to_no_label_of_the_template_is_not_known() {
    for target in ["1b", "elsewhere", "\u{e9}", "7f"] {
        let source = format!(
            "void f(void) {{ asm(\"lwarx %0,0,%1\\n bne {target}\" : \"=r\"(x) : \"r\"(p)); }}\n"
        );
        let (text, warnings) = translated(&source);
        assert_eq!((text, warnings.len()), (source, 1), "{target}");
    }
}
