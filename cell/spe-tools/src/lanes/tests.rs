//! The pass on small sources.

use super::*;

fn exact(source: &str) -> String {
    match rewrite(source.as_bytes(), Lanes::Exact, false) {
        Some(result) => String::from_utf8(result.source).expect("text stays text"),
        None => source.into(),
    }
}

#[test]
fn constants_are_numbers() {
    assert_eq!(
        exact(
            "static __spe_vec_uchar16 a = \
             (__spe_vec_uchar16)(__spe_vec_uint4){0x01020304, -1, 2, 3};"
        ),
        "static __spe_vec_uchar16 a = {0x1,0x2,0x3,0x4,0xff,0xff,0xff,0xff,0x0,\
         0x0,0x0,0x2,0x0,0x0,0x0,0x3};"
    );
    assert_eq!(
        exact(
            "static const __spe_vec_ushort8 h = \
             (__spe_vec_ushort8)((__spe_vec_uint4){ 0x10002, 1, 2, 3 });"
        ),
        "static const __spe_vec_ushort8 h = {0x1,0x2,0x0,0x1,0x0,0x2,0x0,0x3};"
    );
}

#[test]
fn splats_are_numbers_where_the_compiler_must_evaluate_them() {
    assert_eq!(
        exact("static const __spe_vec_float4 half = spu_splats(0.5f);"),
        "static const __spe_vec_float4 half = {5e-1,5e-1,5e-1,5e-1};"
    );
    assert_eq!(
        exact("typedef __spe_vec_float4 v; static v a[2] = {spu_splats(1.0f), spu_splats(-2.f)};"),
        "typedef __spe_vec_float4 v; static v a[2] = {{1e0,1e0,1e0,1e0}, {-2e0,-2e0,-2e0,-2e0}};"
    );
    let source = "static __spe_vec_uchar16 p = (__spe_vec_uchar16)spu_splats(0x00010203);";
    assert!(exact(source).contains("= {0x0,0x1,0x2,0x3,0x0,0x1"));
    let call = "void f(void) { x = spu_splats(1.0f); }";
    assert_eq!(exact(call), call);
}

#[test]
fn casts_become_calls_and_other_parentheses_stay() {
    let casts = [
        (
            "x = (__spe_vec_uint4)y;",
            "x = __lane_cast(__spe_vec_uint4, y);",
        ),
        (
            "f((__spe_vec_uint4)(__spe_vec_uchar16)g(a, b)[1] + 1);",
            "f(__lane_cast(__spe_vec_uint4, __lane_cast(__spe_vec_uchar16, g(a, b)[1])) + 1);",
        ),
        (
            "return(__spe_vec_uint4)x;",
            "return __lane_cast(__spe_vec_uint4, x);",
        ),
        (
            "return (__spe_vec_uint4)-p->q;",
            "return __lane_cast(__spe_vec_uint4, -p->q);",
        ),
        (
            "r = (__spe_vec_float4)si_lqd(a, 16);",
            "r = (__spe_vec_float4)__si_raw_lqd(a, 16);",
        ),
        (
            "q = reinterpret_cast<__spe_vec_uint4>(v);",
            "q = __lane_cast(__spe_vec_uint4, (v));",
        ),
        (
            "v = *(__spe_vec_uint4 *)(p + 1);",
            "v = *__lane_at((__spe_vec_uint4 *)(p + 1));",
        ),
    ];
    for (source, wanted) in casts {
        let source = format!("void h(void) {{ {source} }}");
        assert_eq!(exact(&source), format!("void h(void) {{ {wanted} }}"));
    }
    for same in [
        "__spe_vec_uint4 f(__spe_vec_uint4);",
        "void h(void) { x = sizeof(__spe_vec_uint4) + 1; }",
        "void h(void) { x = (__spe_vec_uint4){1, 2}; }",
        "void h(void) { x = (int)y + (z)(__spe_vec); }",
        "# 1 \"/usr/include/x.h\" 1 3\nvoid h(void) { x = (__spe_vec_uint4)y; }",
    ] {
        assert_eq!(exact(same), same);
    }
}

#[test]
fn memory_of_bytes_that_holds_floats_stays_where_nobody_asks_for_more() {
    let source = "__spe_vec_uchar16 m[2]; __spe_vec_float4 f;\
                  void h(void) { f = (__spe_vec_float4)m[1]; m[0] = (__spe_vec_uchar16)f; }";
    let auto = rewrite(source.as_bytes(), Lanes::Auto, false).expect("there are two sizes");
    let auto = String::from_utf8(auto.source).expect("text stays text");
    assert!(
        auto.contains("__lane_loaded(__spe_vec_float4, m[1])"),
        "{auto}"
    );
    assert!(
        auto.contains("__lane_stored(__spe_vec_uchar16, f)"),
        "{auto}"
    );
    let one = "__spe_vec_float4 f; void h(void) { g((__spe_vec_float4)f); }";
    assert!(rewrite(one.as_bytes(), Lanes::Auto, false).is_none());
}

#[test]
fn bytes_of_vectors_are_found_or_a_line_says_where_they_are_not() {
    let text = "union { __spe_vec_uint4 v; unsigned char b[16]; } u;\n\
                void h(void) { __spe_vec_uint4 v; \
                unsigned char *p = (unsigned char *)&v; u.b[3] = p[1]; }";
    assert!(exact(text).ends_with(
        "u.b[__lane_shared(unsigned char, 4, 3)] = p[__lane_index(unsigned char, &v, 1)]; }"
    ));
    let halves = "__spe_vec_uint4 q; void h(void) { x = a.ui[1]; } \
                  union { unsigned long long ull; unsigned int ui[2]; void *p; } a;";
    assert!(
        exact(halves)
            .contains("x = a.ui[__lane_shared(unsigned int, sizeof(unsigned long long), 1)];")
    );
    for same in [
        "union { __spe_vec_uint4 v; unsigned int w[4]; } a; void h(void) { x = a.w[1]; }",
        "__spe_vec_uint4 q; union { int w; char b[2][2]; } a; void h(void) { x = a.b[1][1]; }",
        "__spe_vec_uint4 q; union { int i; char c[4]; } a; int endian(void) { x = a.c[0]; }",
    ] {
        assert_eq!(exact(same), same);
    }
    // The same name in another structure: the compiler knows the object's type, if it has a name.
    let twice = format!("struct pixel {{ unsigned char b[4]; }} x;\n{text}");
    let unknown = rewrite(twice.as_bytes(), Lanes::Exact, false).expect("it is asked for");
    assert!(
        unknown.inexact[0].contains("`b` shares memory"),
        "{unknown:?}"
    );
    let named = exact(&twice.replace("union {", "union both {"));
    let wanted = "u.b[__lane_shared(unsigned char, __lane_of(union both, (u), 4), 3)] = p[";
    assert!(named.contains(wanted), "{named}");
    let moved = "# 7 \"a.c\"\nvoid h(void) { __spe_vec_uint4 v; \
                 unsigned char *p = (unsigned char *)&v; p++; }";
    let result = rewrite(moved.as_bytes(), Lanes::Exact, false).expect("it is asked for");
    let [line] = result.inexact.as_slice() else {
        panic!("{:?}", result.inexact);
    };
    let said = "elements of size 4 are read as elements of size 1 in memory; cast the vector";
    assert!(line.starts_with(&format!("a.c:7: error: lanes: {said}")));
    let warned = rewrite(moved.as_bytes(), Lanes::Warn, false).expect("it is said");
    assert!(warned.inexact[0].starts_with("a.c:7: warning: lanes: elements of size 4"));
}

#[test]
fn members_without_an_exact_form_are_refused_where_they_are_used() {
    let said = |source: &str| {
        let source =
            format!("# 3 \"a.c\"\n{source} __spe_vec_uchar16 other; __spe_vec_uint4 more;");
        rewrite(source.as_bytes(), Lanes::Auto, false).map_or_else(Vec::new, |read| read.inexact)
    };
    let union = "typedef union both { __spe_vec_uint4 w; __spe_vec_uchar16 b; unsigned char c[16]; \
                 struct { unsigned short a; char z; } s; unsigned long long l[2]; \
                 char first; } both; both u, *p;";
    for (access, member) in [
        ("x = u.s.a;", "s"),
        ("x = p->l[1];", "l"),
        ("u.first = 1;", "first"),
        ("g(u.c);", "c"),
        ("g(&p->c[1]);", "c"),
        ("g(&u.b);", "b"),
        ("p->b += v;", "b"),
        ("both v = { .b = x };", ""),
    ] {
        let lines = said(&format!("{union} void f(void) {{ {access} }}"));
        let line = format!("a.c:3: error: lanes: `{member}` shares memory with elements of size 4");
        let right = lines.len() == 1 && (member.is_empty() || lines[0].starts_with(&line));
        assert!(right, "{access}: {lines:?}");
    }
    let listed = "union t { unsigned char c[16]; __spe_vec_uint4 v; } u = {{ 1 }};";
    let fields = "struct h { int high, low; }; union { long long w; struct h s; } u; \
                  void f(void) { g(u.s); }";
    let aligned = "union { unsigned char c[16]; __spe_vec_uint4 v; } \
                   __attribute__((aligned(16))) u = {{ 1 }};";
    let literal = "union t { unsigned char c[16]; __spe_vec_uint4 v; }; \
                   void f(void) { g((union t){{ 1 }}); h((union t){{ 0 }}); }";
    for (source, wanted) in [
        (listed, "a list fills a member"),
        (aligned, "a list fills a member"),
        (literal, "a list fills a member"),
        (fields, "`s` shares memory"),
    ] {
        let lines = said(source);
        assert!(lines.len() == 1 && lines[0].contains(wanted), "{lines:?}");
    }
    for quiet in [
        union,
        "union t { unsigned char c[16]; __spe_vec_uint4 v; } u = {{ 0 }}; union t x = { .v = y }; \
         void f(void) { float u[2] = { 1, 2 }; }",
        "union { __spe_vec_float4 v; struct { float x, y, z, w; } s; float a[4]; } u; f = u.s.x;",
        "union { __spe_vec_uint4 *w; __spe_vec_uchar16 *b; } u; void f(void) { g(u.b); }",
        "union { __spe_vec_float4 v; struct { unsigned char *bytes; } s; } u;",
        "union { int i; double d; struct { char *text; int n; } s; } u; void f(void) { g(u.s); }",
        "int word; void f(void) { write(1, (char *)&word, 4); }",
    ] {
        assert_eq!(said(quiet), Vec::<String>::new(), "{quiet}");
    }
}

#[test]
fn members_of_other_elements_are_turned_at_each_access() {
    let declared = "typedef union { __spe_vec_uint4 w; __spe_vec_uchar16 b; struct { short h, l; \
                    } s; \
                    struct { char c0, c1, c2, c3; }; } reg; struct { reg r; } *p; ";
    for (source, wanted) in [
        ("x = p->r.b;", "x = __lane_held(4, p->r.b);"),
        (
            "p->r.b = q->b = y;",
            "__lane_put_as(4, p->r.b , __lane_put_as(4, q->b , y));",
        ),
        (
            "x = f(p->r.b)[i] & p->r.w;",
            "x = f(__lane_held(4, p->r.b))[i] & p->r.w;",
        ),
        ("p->r.b[2] = 1;", "p->r.b[__lane_shared(char, 4, 2)] = 1;"),
        (
            "x = p->r.s.h + sizeof(p->r.b);",
            "x = p->r.s.l + sizeof(p->r.b);",
        ),
        ("p->r.c0 = p->r.c1;", "p->r.c3 = p->r.c2;"),
    ] {
        let found = exact(&format!("{declared}void h(void) {{ {source} }}"));
        assert_eq!(found, format!("{declared}void h(void) {{ {wanted} }}"));
    }
    let quadword = "typedef __spe_vec_char16 qword; union { qword q; float f[4]; } *u; ";
    let found = exact(&format!("{quadword}void f(void) {{ u->f[1] = g(u->q); }}"));
    assert!(
        found.ends_with("{ u->f[1] = g(__lane_held(4, u->q)); }"),
        "{found}"
    );
    let wide = "typedef int wide __attribute__((mode(TI))); typedef unsigned long long half; \
                union { wide w; half h[2]; struct { half high, low; } s; } u; __spe_vec_uint4 v; ";
    let found = exact(&format!("{wide}void f(void) {{ u.h[1] = u.s.high; }}"));
    assert!(
        found.ends_with("{ u.h[__lane_shared(half, sizeof(wide), 1)] = u.s.low; }"),
        "{found}"
    );
}

#[test]
fn casts_to_types_that_only_the_compiler_knows_are_its_choice() {
    let two = "__spe_vec_ushort8 a; __spe_vec_uint4 b; ";
    for (source, wanted) in [
        ("b = (typeof(b))a;", "b = __lane_any(typeof(b), a);"),
        (
            "x = (__typeof__(y))(z + 1);",
            "x = __lane_any(__typeof__(y), (z + 1));",
        ),
        ("x = (typeof(y))-1;", "x = (typeof(y))-1;"),
        (
            "x = y[(typeof(y))z]; case (typeof(y))z: enum { one = (typeof(y))z };",
            "x = y[(typeof(y))z]; case (typeof(y))z: enum { one = (typeof(y))z };",
        ),
        (
            "x = y[((typeof(b))z)[1]];",
            "x = y[( __lane_any(typeof(b), z))[1]];",
        ),
        ("f(typeof(b));", "f(typeof(b));"),
    ] {
        let found = exact(&format!("{two}void h(void) {{ {source} }}"));
        let found = found.replace("  ", " ");
        assert_eq!(found, format!("{two}void h(void) {{ {wanted} }}"));
    }
    let plus = "template <class T, typename U> T f(U u) { return (T)u; } template <int n> class k;";
    let found = exact(&format!("{two}{plus}")).replace("  ", " ");
    assert!(found.contains("{ return __lane_any(T, u); }"), "{found}");
}

#[test]
fn vectors_in_memory_are_copied_and_looked_at_by_the_spus_numbers() {
    let declared = "__spe_vec_uint4 v, w[4]; __spe_vec_uchar16 b; unsigned int n; char text[16]; ";
    for (source, wanted) in [
        ("memcpy(&v, &b, 16);", "__lane_copied(&v, &b, &v, &b, 16);"),
        (
            "memcpy(w, (char *)&b, k);",
            "__lane_copied(w, &b, w, (char *)&b, k);",
        ),
        ("memcpy(&n, &b, 4);", "__lane_copied(&n, &b, &n, &b, 4);"),
        ("memcpy(&n, text, 4);", "memcpy(&n, text, 4);"),
        (
            "p = mempcpy(&v, &b, 16);",
            "p = __lane_mempcopied(&v, &b, &v, &b, 16);",
        ),
        (
            "bcopy(&b, w + 1, 16);",
            "__lane_bcopied(w + 1, &b, &b, w + 1, 16);",
        ),
        (
            "b = *(__spe_vec_uchar16 *)(void *)&v;",
            "b = *&__lane_view(__spe_vec_uchar16, &v);",
        ),
        (
            "x = ((unsigned char *)&n)[3];",
            "x = ((unsigned char *)&n)[__lane_index(unsigned char, &n, 3)];",
        ),
        (
            "unsigned char *p = (unsigned char *)&n; x = p[0];",
            "unsigned char *p = (unsigned char *)&n; x = p[__lane_index(unsigned char, &n, 0)];",
        ),
    ] {
        let found = exact(&format!("{declared}void h(void) {{ {source} }}"));
        assert_eq!(found, format!("{declared}void h(void) {{ {wanted} }}"));
    }
    let looked = "unsigned f(const void *p) { return ((const unsigned short *)p)[1]; } \
                  __spe_vec_uchar16 b; __spe_vec_uint4 v; int x = f(&v);";
    let found = rewrite(looked.as_bytes(), Lanes::Exact, false).expect("it is asked for");
    assert_eq!(found.inexact.len(), 1, "{:?}", found.inexact);
    for source in [
        "void *p = &v; b = *(__spe_vec_uchar16 *)p;",
        "unsigned char *p = (unsigned char *)&n; x = *p++;",
    ] {
        let source = format!("{declared}void h(void) {{ {source} }}");
        let found = rewrite(source.as_bytes(), Lanes::Exact, false).expect("it is asked for");
        assert_eq!(found.inexact.len(), 1, "{source}: {:?}", found.inexact);
    }
}

#[test]
fn halves_that_are_mailed_together_have_the_order_of_the_cell() {
    let declared = "__spe_vec_uint4 v; union { unsigned long long ea; unsigned int ui[2]; } a; ";
    let wanted = "spe_in_mbox_write(s[i].spe, __lane_words(unsigned int, \
                  sizeof(unsigned long long), p->a.ui), 2, 1);";
    let source = "spe_in_mbox_write(s[i].spe, p->a.ui, 2, 1);";
    assert_eq!(
        exact(&format!("{declared}{source}")),
        format!("{declared}{wanted}")
    );
    let source = format!("{declared}spe_in_mbox_write(s, words, 2, 1);");
    assert_eq!(exact(&source), source);
}

#[test]
fn unions_of_vectors_of_several_sizes_hold_the_register() {
    let body = "__spe_vec_uint4 w; __spe_vec_uchar16 b; unsigned char c[16]; float f[4];";
    let declared = format!("typedef union {{ {body} }} reg; static reg a, t[2]; ");
    let cases = [
        (
            "a.w = f(a.b, t[i].w);",
            "__lane_put(a.w , f(__lane_united(a.b), __lane_united(t[i].w)));",
        ),
        (
            "a.w = t[0].b = x ? y : z;",
            "__lane_put(a.w , __lane_put(t[0].b , x ? y : z));",
        ),
        (
            "x = a.c[i + 1] & a.f[2];",
            "x = a.c[__lane_shared(unsigned char, 16, i + 1)] & \
             a.f[__lane_shared(float, 16, 2)];",
        ),
        ("a = t[1]; g(a, sizeof(a));", "a = t[1]; g(a, sizeof(a));"),
        (
            "if (a.c[0] && p) { int a = 1; f(&b, a); }",
            "if (a.c[__lane_shared(unsigned char, 16, 0)] && p) { int a = 1; f(&b, a); }",
        ),
    ];
    for (source, wanted) in cases {
        assert_eq!(
            exact(&format!("{declared}void h(void) {{ {source} }}")),
            format!("{declared}void h(void) {{ {wanted} }}")
        );
    }
    // Where one use could see memory, that keeps its first vector's order.
    for source in [
        "f(&a);",
        "f(&a.w);",
        "f(t);",
        "a.w += b;",
        "a.w[1] = 2;",
        "reg *p = q;",
        "x = *(reg *)q;",
        "reg b = {{ 1 }};",
        "struct { reg r; } s;",
        "x = g(y).w;",
        "x = (a).w;",
        "typeof(a) b;",
    ] {
        let source = format!("{declared}void h(void) {{ {source} x = a.b; }}");
        let result = rewrite(source.as_bytes(), Lanes::Exact, false).expect("it is asked for");
        assert_eq!(result.inexact, Vec::<String>::new(), "{source}");
        let found = String::from_utf8_lossy(&result.source).into_owned();
        assert!(found.ends_with("x = __lane_held(4, a.b); }"), "{found}");
    }
    let others = [
        format!("{declared}extern reg e; void h(void) {{ x = a.b; }}"),
        format!("union reg {{ {body} int n; }} a; void h(void) {{ x = a.b; }}"),
        format!("# 1 \"a.c\"\nint n;\n# 1 \"a.h\"\n{declared}\nvoid h(void) {{ x = a.b; }}"),
    ];
    for source in others {
        let found = exact(&source);
        assert!(found.ends_with("x = __lane_held(4, a.b); }"), "{found}");
    }
}

#[test]
fn vectors_of_the_compiler_s_attribute_are_vectors() {
    for declared in [
        "typedef unsigned int v4 __attribute__((vector_size(16)));",
        "typedef unsigned int __attribute__((__vector_size__(16))) v4;",
    ] {
        let source = format!("__spe_vec_uchar16 b; {declared} void f(void) {{ x = (v4)y; }}");
        let found = exact(&source);
        assert!(found.ends_with("x = __lane_cast(v4, y); }"), "{found}");
    }
}

#[test]
fn what_a_number_s_pointer_reads_is_the_first_element() {
    let source = "__spe_vec_uint4 v; int f(void) { return *(unsigned char *)&v; }";
    let wanted = source.replace(
        "*(unsigned char *)&v",
        "((unsigned char *)&v)[__lane_index(unsigned char, &v, 0)]",
    );
    assert_eq!(exact(source), wanted);
}

#[test]
fn what_reads_more_or_less_than_an_element_is_said() {
    for source in [
        "__spe_vec_ushort8 v; void f(void) { unsigned int *w = (unsigned int *)&v; x = w[0]; }",
        "__spe_vec_uint4 v; int f(void) { return *((unsigned char *)&v + 1); }",
    ] {
        let source = format!("{source} __spe_vec_uchar16 other;");
        let result = rewrite(source.as_bytes(), Lanes::Auto, false).expect("several sizes");
        assert_eq!(result.inexact.len(), 1, "{source}: {:?}", result.inexact);
        assert_eq!(result.source, source.as_bytes(), "{source}");
    }
}

#[test]
fn what_a_void_pointer_hides_is_said_where_it_becomes_one_to_vectors() {
    let two = "__spe_vec_uint4 v; __spe_vec_ushort8 w;";
    let said = |source: &str| {
        let source = format!("{two} {source}");
        let result = rewrite(source.as_bytes(), Lanes::Auto, false);
        result.map_or(0, |result| result.inexact.len())
    };
    let call = "void g(void) { f(&v); }";
    let hidden = "void f(void *d) { __spe_vec_ushort8 *p = d; w = p[0]; }";
    assert_eq!(said(&format!("{hidden} {call}")), 1);
    // Of its own elements, and one of another function that has no `void *`.
    for same in [
        "void f(void *d) { __spe_vec_uint4 *q = d; v = q[0]; }",
        "void f(void *d) { } void h(__spe_vec_ushort8 *d) { __spe_vec_ushort8 *p = d; w = p[0]; }",
    ] {
        assert_eq!(said(&format!("{same} {call}")), 0, "{same}");
    }
}

#[test]
fn names_of_typeof_are_types_that_the_compiler_knows() {
    let two = "__spe_vec_uint4 v; __spe_vec_ushort8 w; typedef __typeof__(w) t;";
    let found = exact(&format!("{two} void f(void) {{ w = (t)v; w = *(t *)&v; }}"));
    let found = found.replace("  ", " ");
    assert!(found.contains("w = __lane_any(t, v);"), "{found}");
    assert!(found.contains("w = *&__lane_look(t, &v);"), "{found}");
}

fn old_definition(source: &str) -> Option<usize> {
    let text = crate::text::Text::new(source.as_bytes());
    types::Types::read(&text).old_definition(&text)
}

#[test]
fn a_function_without_a_prototype_is_found_by_its_vectors() {
    let two = "__spe_vec_ushort8 in;\n";
    for (source, found) in [
        ("int f(v, n) __spe_vec_uint4 v; int n; { return n; }", true),
        ("int f(n) int n; { __spe_vec_uint4 v; }", false),
        (
            "int f(__spe_vec_uint4 v) { return 0; } int n; struct s { int a; };",
            false,
        ),
        (
            "int f(v); __spe_vec_uint4 g(void) { if (v) return; __spe_vec_uint4 w; {} }",
            false,
        ),
    ] {
        let source = format!("{two}{source}");
        let name = old_definition(&source);
        assert_eq!(name.is_some(), found, "{source}");
    }
    // Where all elements have one size, nothing is to be converted.
    let source = "int f(v) __spe_vec_uint4 v; { return 0; }";
    assert_eq!(old_definition(source), None);
}

#[test]
fn pointers_in_structures_find_the_quadword() {
    let source = "int a(int x) { return x & 15; } struct s { __spe_vec_uchar16 *p; }; \
                  v = *s.p; w = q->a[1].p[i]; x = (*t).p[2]; y = a > p[1]; z = { .p = r }; \
                  __spe_vec_uint4 b = { 1 }, *p; g(1, *p); a = 1, *p = b; if (a) (*t).p[2] = b;";
    let found = exact(source);
    assert!(
        found.ends_with(
            "v = *__lane_at(s.p); w = (*__lane_at(&q->a[1].p[i])); \
             x = (*__lane_at(&(*t).p[2])); y = a > (*__lane_at(&p[1])); z = { .p = r }; \
             __spe_vec_uint4 b = { 1 }, *p; g(1, *__lane_at(p)); a = 1, *__lane_at(p) = b; \
             if (a) (*t).p[2] = b;"
        ),
        "{found}"
    );
}

#[test]
fn pointers_behind_other_declarators_are_pointers() {
    let head = "int a(int x) { return x & 15; } ";
    for (source, reads) in [
        ("__spe_vec_uchar16 *r = f(1, 2), *const t; g(*t);", true),
        ("for (__spe_vec_int4 n = { 1, 2 }, *t = 0;;) g(*t);", true),
        ("s: __spe_vec_int4 n, *t; g(*t);", true),
        // Parameters, pointers to pointers, and what stands behind a function's body.
        ("void f(__spe_vec_int4 v, int b, int *t) { g(*t); }", false),
        ("__spe_vec_int4 v = a, **t; g(*t);", false),
        ("__spe_vec_int4 f(void) { } int n, *t; g(*t);", false),
    ] {
        let found = if reads { "g(*__lane_at(t))" } else { "g(*t)" };
        let wanted = source.replace("g(*t)", found);
        assert_eq!(exact(&format!("{head}{source}")), format!("{head}{wanted}"));
    }
}

#[test]
fn initializers_that_cplusplus_computes_are_cast() {
    let global = "__spe_vec_uint4 g = (__spe_vec_uint4)in;";
    assert_eq!(exact(global), global);
    let plus = exact(&format!("template <class T> T f(); {global}"));
    assert!(
        plus.ends_with("g = __lane_cast(__spe_vec_uint4, in);"),
        "{plus}"
    );
}

#[test]
fn casts_of_cplusplus_are_no_declarations() {
    let plus = |source: &str| {
        exact(&format!(
            "template <class T> __spe_vec_ushort8 y;\n{source}"
        ))
    };
    for (source, wanted) in [
        (
            "x = __spe_vec_uint4(y) + z;",
            "x = __lane_cast(__spe_vec_uint4, (y)) + z;",
        ),
        (
            "x = (__spe_vec_uint4)__spe_vec_uchar16(y);",
            "x = __lane_cast(__spe_vec_uint4, __lane_cast(__spe_vec_uchar16, (y)));",
        ),
        (
            "x = (__spe_vec_uint4)as<__spe_vec_uchar16>(y) < z;",
            "x = __lane_cast(__spe_vec_uint4, as<__spe_vec_uchar16>(y)) < z;",
        ),
        (
            "x = (__spe_vec_uint4)a < b;",
            "x = __lane_cast(__spe_vec_uint4, a) < b;",
        ),
        (
            "h(1, __spe_vec_uint4(*y));",
            "h(1, __lane_cast(__spe_vec_uint4, (*y)));",
        ),
        (
            "x = reinterpret_cast<const __spe_vec_uint4 &>(y);",
            "x = __lane_cast(__spe_vec_uint4, (y));",
        ),
    ] {
        let found = plus(&format!("void g() {{ {source} }}"));
        assert!(found.ends_with(&format!("{{ {wanted} }}")), "{found}");
    }
    for source in [
        "__spe_vec_uint4 (*p)(int);",
        "void g(__spe_vec_uint4 (*p)(int), __spe_vec_uint4 (&r)[2]);",
        "std::function<__spe_vec_uint4(int)> h;",
        "struct s { operator __spe_vec_uint4() const; };",
        "struct s { bool operator()(__spe_vec_uint4) const; };",
        "x = reinterpret_cast<__spe_vec_uint4 &>(y);",
        "x = &reinterpret_cast<const __spe_vec_uint4 &>(y);",
        "using f = __spe_vec_uint4(other);",
    ] {
        assert!(plus(source).ends_with(source), "{source}");
    }
}
