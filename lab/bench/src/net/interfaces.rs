//! Namespaces whose interfaces are up: a loopback alone, or two with a wire between them.
//!
//! Why here: a namespace is born with its loopback down, and interfaces are made and moved by
//! `ip`, a program like the peers. Source: veth(4), ip-link(8).

use super::BenchError;
use super::namespace::Namespace;
use super::programs::{Running, tool};
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;

/// A namespace with nothing but a loopback, which is up.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege.
pub(crate) fn alone(cancel: &AtomicBool) -> Result<Namespace, BenchError> {
    let namespace = Namespace::new()?;
    ip(&namespace, "link set lo up", cancel)?;
    Ok(namespace)
}

/// Two of them with a veth pair from one to the other: interface `near` at 10.99.0.1/24 in the
/// first, `far` at 10.99.0.2/24 in the second, both up.
pub(crate) fn wired(cancel: &AtomicBool) -> Result<(Namespace, Namespace), BenchError> {
    let (first, second) = (alone(cancel)?, alone(cancel)?);
    let number = second.number();
    let add = format!("link add near type veth peer name far netns {number}");
    ip(&first, &add, cancel)?;
    for (namespace, name, address) in [(&first, "near", "10.99.0.1"), (&second, "far", "10.99.0.2")]
    {
        let add = format!("address add {address}/24 dev {name}");
        ip(namespace, &add, cancel)?;
        ip(namespace, &format!("link set {name} up"), cancel)?;
    }
    Ok((first, second))
}

/// Makes the kernel use CUBIC for all its sessions through `interface`, whose `address` is of a
/// /24. The machine's default decides whether a namespace may choose for itself.
///
/// # Errors
/// [`BenchError::Program`] where the kernel has no CUBIC.
pub(crate) fn choose_cubic(
    at: &Namespace,
    interface: &str,
    address: Ipv4Addr,
    cancel: &AtomicBool,
) -> Result<(), BenchError> {
    let [a, b, c, _] = address.octets();
    let change = format!(
        "route change {a}.{b}.{c}.0/24 dev {interface} proto kernel scope link src {address} \
         congctl cubic"
    );
    ip(at, &change, cancel)
}

fn ip(at: &Namespace, words: &str, cancel: &AtomicBool) -> Result<(), BenchError> {
    let mut command = tool("ip")?;
    command.args(words.split(' '));
    Running::start(Some(at), command)?.output(cancel)?;
    Ok(())
}
