//! Options of the linker for a preloaded library.

fn main() {
    // Internal calls go to this library's own functions, even if other libraries define the names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Otherwise thread-local data might be dropped after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
