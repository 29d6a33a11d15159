//! The stack in virtual time behind a C interface, so that an outside script runner can drive it:
//! the runner sends and receives raw IP packets, moves the clock, and calls sockets.
//!
//! `packetdrill --so_filename=libsidecore_net_shim.so SCRIPT` (Cardwell et al., USENIX ATC 2013)
//! loads it and calls [`packetdrill_interface_init`], which fills in a structure of pointers.
//! `--so_flags` takes what a script of ours has at its head (`docs/formats/drill.md`), joined by
//! commas: `local_ip=192.168.0.1,mtu=1500,tso=off`.
//!
//! Two threads call: the one that initialised moves the clock and never waits for anything but the
//! stack's timers; another one may be in a blocking socket call. Must stay true: before the clock
//! moves, a blocked call has seen all events so far (`shim::Shim::settle`), so that a run is the
//! same each time.

mod abi;
mod address;
mod calls;
mod clock;
mod errors;
mod options;
mod shim;
mod transfer;

pub use abi::Interface;
use abi::{Flags, User};
use shim::Shim;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Fills in the interface. `flags` may be null. Where the stack cannot be set up, a line on
/// standard error says why, and every call fails with `EIO`.
///
/// # Safety
/// `interface` points to room for an [`Interface`]; `flags` is null or a C string.
#[expect(unsafe_code, reason = "a C surface")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: Flags, interface: *mut Interface) {
    let flags = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: not null, so a C string, says the caller.
        unsafe { CStr::from_ptr(flags) }
            .to_string_lossy()
            .into_owned()
    };
    let userdata: User = match Shim::new(&flags) {
        Ok(shim) => Box::into_raw(Box::new(shim)).cast(),
        Err(problem) => {
            eprintln!("sidecore-net-shim: {problem}");
            null_mut()
        }
    };
    if interface.is_null() {
        return;
    }
    // SAFETY: the caller says that there is room; what lay there is not dropped, it is C's.
    unsafe { interface.write(filled(userdata)) };
}

fn filled(userdata: User) -> Interface {
    Interface {
        userdata,
        free: clock::free,
        socket: calls::socket,
        bind: calls::bind,
        listen: calls::listen,
        accept: calls::accept,
        connect: calls::connect,
        read: transfer::read,
        readv: transfer::readv,
        recv: transfer::recv,
        recvfrom: transfer::recvfrom,
        recvmsg: transfer::recvmsg,
        write: transfer::write,
        writev: transfer::writev,
        send: transfer::send,
        sendto: transfer::sendto,
        sendmsg: transfer::sendmsg,
        fcntl: calls::fcntl,
        ioctl: calls::ioctl,
        close: calls::close,
        shutdown: calls::shutdown,
        getsockopt: options::getsockopt,
        setsockopt: options::setsockopt,
        poll: calls::poll,
        netdev_send: clock::netdev_send,
        netdev_receive: clock::netdev_receive,
        usleep: clock::usleep,
        gettimeofday: clock::gettimeofday,
        epoll_create: calls::epoll_create,
        epoll_ctl: calls::epoll_ctl,
        epoll_wait: calls::epoll_wait,
        pipe: calls::pipe,
        splice: calls::splice,
    }
}
