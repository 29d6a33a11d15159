use super::*;

fn rewritten(source: &str) -> String {
    let text = vectors(source.as_bytes()).unwrap_or_else(|| source.into());
    String::from_utf8(text).expect("what is not changed stays text")
}

#[test]
fn types_become_names_and_other_uses_stay() {
    assert_eq!(rewritten("vector float a;"), "__spe_vec_float4 a;");
    assert_eq!(
        rewritten("static vector unsigned long long int b[2];"),
        "static __spe_vec_ullong2 b[2];"
    );
    assert_eq!(
        rewritten("vector bool int m; vector pixel p;"),
        "__spe_vec_uint4 m; __spe_vec_ushort8 p;"
    );
    assert_eq!(
        rewritten("vector unsigned\nchar c;"),
        "__spe_vec_uchar16\n c;"
    );
    for same in [
        "int vector;",
        "a.vector = 1;",
        "std::vector<float> v;",
        "\"vector float\"",
        "/* vector int */",
        "# 1 \"vector int\"\n",
        "struct vector v;",
    ] {
        assert_eq!(vectors(same.as_bytes()), None, "{same}");
    }
}

#[test]
fn names_of_numbers_are_read_as_keywords() {
    let types = "typedef unsigned int __u; typedef __u u32; typedef short s16[2];";
    assert_eq!(
        rewritten(&format!(
            "{types} __vector u32 a; f((vector u32)(1, 2, 3, 4));"
        )),
        format!("{types} __spe_vec_uint4 a; f((__spe_vec_uint4){{1, 2, 3, 4}});")
    );
    for same in ["struct vector u32;", "__vector s16 b;", "vector other c;"] {
        assert_eq!(
            rewritten(&format!("{types} {same}")),
            format!("{types} {same}")
        );
    }
}

#[test]
fn lists_in_parentheses_become_lists_in_braces() {
    assert_eq!(
        rewritten("(vector float)(1.0, f(2, 3), 3.0, 4.0)"),
        "(__spe_vec_float4){1.0, f(2, 3), 3.0, 4.0}"
    );
    assert_eq!(rewritten("(vec_uint4)(-7)"), "(vec_uint4){-7,-7,-7,-7}");
    assert_eq!(rewritten("(vector signed int)(x)"), "(__spe_vec_int4)(x)");
    assert_eq!(rewritten("(vec_int4)(a + b)"), "(vec_int4)(a + b)");
    assert_eq!(rewritten("f((vec_t)(1, 2))"), "f((vec_t)(1, 2))");
}

#[test]
fn ends_that_are_numbers_are_places_in_the_store() {
    let ended = |source: &str| ends(source.as_bytes()).map(String::from_utf8);
    assert_eq!(
        ended("left = 0x40000 - (int)(&_end);"),
        Some(Ok(
            "left = 0x40000 - (int)((0x3ffffu & (unsigned int)&_end));".into()
        ))
    );
    assert_eq!(
        ended("(unsigned int) &_end"),
        Some(Ok("(unsigned int) (0x3ffffu & (unsigned int)&_end)".into()))
    );
    for same in [
        "char *p = &_end;",
        "(char *)&_end",
        "f(&_end)",
        "(int)(a & _end)",
    ] {
        assert_eq!(ended(same), None, "{same}");
    }
}

#[test]
fn sections_with_names_are_kept() {
    let kept = |source: &str| sections(source.as_bytes()).map(String::from_utf8);
    assert_eq!(
        kept("int a __attribute__((used, section(\".table\")));"),
        Some(Ok(
            "int a __attribute__((used, section(\".table\"), __retain__));".into()
        ))
    );
    assert_eq!(kept("section(1); x = section;"), None);
}

#[test]
fn literals_within_arguments_are_guarded() {
    let guarded = |source: &str| {
        String::from_utf8(guard_literals(source.as_bytes())).expect("text stays text")
    };
    assert_eq!(guarded("f(x, (v){1, 2});"), "f(x, ((v){1, 2}));");
    assert_eq!(
        guarded("f((v){1, g((w){2})});"),
        "f(((v){1, g(((w){2}))}));"
    );
    assert_eq!(guarded("f((v)(w){1, 2});"), "f((v)((w){1, 2}));");
    for same in [
        "x = (v){1, 2};",
        "if (a) { b(c); }",
        "({ if (a) { b(); } })",
        "void f(int (*g)(int)) { }",
    ] {
        assert_eq!(guarded(same), same);
    }
}

#[test]
fn the_first_marker_names_the_source() {
    assert_eq!(first_name(b"# 0 \"a/b.c\"\nint x;\n"), Some("a/b.c"));
    assert_eq!(first_name(b"int x;\n"), None);
}
