//! The least program that hosts kernels, for daemons whose own program cannot
//! (`sidecore_loader::HostProgram`). `sidecore daemon` starts itself instead.

fn main() {
    sidecore_loader::serve_as_host()
}
