//! Sets the soname, by which linked programs find the library.

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
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore_net.so.{interface}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Otherwise thread-local data might be dropped after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
