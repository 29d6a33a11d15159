//! The pass on small sources.

use super::*;

fn exact(source: &str) -> String {
    match rewrite(source.as_bytes(), Lanes::Exact) {
        Some(result) => String::from_utf8(result.source).expect("text stays text"),
        None => source.into(),
    }
}

#[test]
fn constants_are_numbers() {
    assert_eq!(
        exact("static __spe_vec_uchar16 a = (__spe_vec_uchar16)(__spe_vec_uint4){0x01020304, -1, 2, 3};"),
        "static __spe_vec_uchar16 a = {0x1,0x2,0x3,0x4,0xff,0xff,0xff,0xff,0x0,\
         0x0,0x0,0x2,0x0,0x0,0x0,0x3};"
    );
    assert_eq!(
        exact("static const __spe_vec_ushort8 h = (__spe_vec_ushort8)((__spe_vec_uint4){ 0x10002, 1, 2, 3 });"),
        "static const __spe_vec_ushort8 h = {0x1,0x2,0x0,0x1,0x0,0x2,0x0,0x3};"
    );
}
