//! Names the shared object and its interface, so that programs that were linked with it find it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let (major, minor) = (
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
    );
    // Before 1.0 each minor version may change the interface, and then stands in the name.
    let interface = match major {
        "0" => format!("0.{minor}"),
        major => major.to_owned(),
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore.so.{interface}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Thread-local values may be dropped after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
