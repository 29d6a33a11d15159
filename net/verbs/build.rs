//! Symbols of the library and their versions, from a table.
//!
//! rustc's own list of exported symbols has no versions, and a symbol in it cannot get one: so
//! each symbol is a jump in assembly, which that list does not name, and a version script of its
//! own names them. The linker must accept two scripts, as rustc's default one (lld) does.

use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let (mut script, mut entries) = (String::new(), String::new());
    // The functions may be in other objects of this crate, so an alias would not do.
    let jump = match std::env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "aarch64" => "b",
        _ => "jmp",
    };
    let mut last: Option<&str> = None;
    for line in TABLE.lines() {
        match line.split_once(' ') {
            // A version: it follows the one before it of the same library.
            None => {
                if let Some(last) = last {
                    writeln!(script, "}}{};", parent(last))?;
                }
                writeln!(script, "{line} {{ global:")?;
                last = Some(line);
            }
            Some((symbol, function)) => {
                writeln!(script, "{symbol};")?;
                writeln!(
                    entries,
                    "::std::arch::global_asm!(\".pushsection .text.{symbol},\\\"ax\\\"\", \
                     \".globl {symbol}\", \".type {symbol}, @function\", \"{symbol}:\", \
                     \"{jump} {{0}}\", \".size {symbol}, . - {symbol}\", \".popsection\", \
                     sym crate::{function});"
                )?;
            }
        }
    }
    if let Some(last) = last {
        writeln!(script, "}}{};", parent(last))?;
    }
    let folder = std::env::var("OUT_DIR")?;
    let map = Path::new(&folder).join("symbols.map");
    std::fs::write(&map, script)?;
    std::fs::write(Path::new(&folder).join("symbols.rs"), entries)?;
    let map = map.display();
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={map}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // A thread of its own runs to the end of the process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

/// The version before another one of the same library, with a blank in front; empty for the first.
fn parent(version: &str) -> String {
    let library = |name: &str| name.split(['_', '.']).take(1).collect::<String>();
    let versions = TABLE.lines().filter(|line| !line.contains(' '));
    let before = versions.take_while(|&other| other != version);
    let before = before.filter(|other| library(other) == library(version));
    before
        .last()
        .map(|found| format!(" {found}"))
        .unwrap_or_default()
}

/// Symbols by version, each with its function; a line without a blank begins a version.
const TABLE: &str = "\
IBVERBS_1.0
ibv_create_comp_channel queue::create_comp_channel
ibv_destroy_comp_channel queue::destroy_comp_channel
ibv_get_sysfs_path device::sysfs_path
ibv_read_sysfs_file device::read_sysfs_file
ibv_rate_to_mult names::rate_to_mult
mult_to_ibv_rate names::mult_to_rate
ibv_copy_path_rec_from_kern refused::nothing
ibv_copy_path_rec_to_kern refused::nothing
ibv_copy_qp_attr_from_kern refused::nothing
IBVERBS_1.1
ibv_ack_async_event queue::ack_async_event
ibv_ack_cq_events queue::ack_cq_events
ibv_alloc_pd memory::alloc_pd
ibv_attach_mcast refused::number
ibv_close_device device::close
ibv_copy_ah_attr_from_kern refused::nothing
ibv_create_ah memory::create_ah
ibv_create_ah_from_wc refused::pointer
ibv_create_cq queue::create_cq
ibv_create_qp pair::create
ibv_create_srq memory::create_srq
ibv_dealloc_pd memory::dealloc_pd
ibv_dereg_mr memory::dereg_mr
ibv_destroy_ah memory::destroy_ah
ibv_destroy_cq queue::destroy_cq
ibv_destroy_qp pair::destroy
ibv_destroy_srq memory::destroy_srq
ibv_detach_mcast refused::number
ibv_dofork_range device::fork_range
ibv_dontfork_range device::fork_range
ibv_event_type_str names::event_type
ibv_fork_init device::fork_init
ibv_free_device_list device::free_list
ibv_get_async_event queue::get_async_event
ibv_get_cq_event queue::get_cq_event
ibv_get_device_guid device::guid
ibv_get_device_list device::list
ibv_get_device_name device::name
ibv_init_ah_from_wc refused::number
ibv_modify_qp pair::modify
ibv_modify_srq memory::modify_srq
ibv_node_type_str names::node_type
ibv_open_device device::open
ibv_port_state_str names::port_state
ibv_query_device device::query
ibv_query_gid device::query_gid
ibv_query_pkey device::query_pkey
ibv_query_port device::query_port_compat
ibv_query_qp pair::query
ibv_query_srq memory::query_srq
ibv_rate_to_mbps names::rate_to_mbps
ibv_reg_mr memory::reg_mr
ibv_register_driver refused::nothing
ibv_rereg_mr memory::rereg_mr
ibv_resize_cq queue::resize_cq
ibv_resolve_eth_l2_from_gid refused::number
ibv_wc_status_str names::wc_status
mbps_to_ibv_rate names::mbps_to_rate
IBVERBS_1.5
ibv_get_pkey_index device::pkey_index
IBVERBS_1.6
ibv_qp_to_qp_ex pair::to_ex
IBVERBS_1.7
ibv_reg_mr_iova memory::reg_mr_iova
IBVERBS_1.8
ibv_reg_mr_iova2 memory::reg_mr_iova2
IBVERBS_1.9
ibv_get_device_index device::index
IBVERBS_1.10
ibv_import_device refused::pointer
ibv_import_mr refused::pointer
ibv_import_pd refused::pointer
ibv_query_ece refused::number
ibv_set_ece refused::number
ibv_unimport_mr refused::nothing
ibv_unimport_pd refused::nothing
IBVERBS_1.11
_ibv_query_gid_ex device::query_gid_ex
_ibv_query_gid_table device::query_gid_table
IBVERBS_1.12
ibv_reg_dmabuf_mr refused::pointer
IBVERBS_1.13
ibv_import_dm refused::pointer
ibv_is_fork_initialized device::fork_status
ibv_unimport_dm refused::nothing
IBVERBS_1.14
ibv_query_qp_data_in_order refused::nothing
IBVERBS_PRIVATE_34
__ioctl_final_num_attrs refused::nothing
__verbs_log refused::nothing
_verbs_init_and_alloc_context refused::pointer
execute_ioctl refused::number
ibv_cmd_advise_mr refused::number
ibv_cmd_alloc_dm refused::number
ibv_cmd_alloc_mw refused::number
ibv_cmd_alloc_pd refused::number
ibv_cmd_attach_mcast refused::number
ibv_cmd_close_xrcd refused::number
ibv_cmd_create_ah refused::number
ibv_cmd_create_counters refused::number
ibv_cmd_create_cq refused::number
ibv_cmd_create_cq_ex refused::number
ibv_cmd_create_flow refused::number
ibv_cmd_create_flow_action_esp refused::number
ibv_cmd_create_qp refused::number
ibv_cmd_create_qp_ex refused::number
ibv_cmd_create_qp_ex2 refused::number
ibv_cmd_create_rwq_ind_table refused::number
ibv_cmd_create_srq refused::number
ibv_cmd_create_srq_ex refused::number
ibv_cmd_create_wq refused::number
ibv_cmd_dealloc_mw refused::number
ibv_cmd_dealloc_pd refused::number
ibv_cmd_dereg_mr refused::number
ibv_cmd_destroy_ah refused::number
ibv_cmd_destroy_counters refused::number
ibv_cmd_destroy_cq refused::number
ibv_cmd_destroy_flow refused::number
ibv_cmd_destroy_flow_action refused::number
ibv_cmd_destroy_qp refused::number
ibv_cmd_destroy_rwq_ind_table refused::number
ibv_cmd_destroy_srq refused::number
ibv_cmd_destroy_wq refused::number
ibv_cmd_detach_mcast refused::number
ibv_cmd_free_dm refused::number
ibv_cmd_get_context refused::number
ibv_cmd_modify_cq refused::number
ibv_cmd_modify_flow_action_esp refused::number
ibv_cmd_modify_qp refused::number
ibv_cmd_modify_qp_ex refused::number
ibv_cmd_modify_srq refused::number
ibv_cmd_modify_wq refused::number
ibv_cmd_open_qp refused::number
ibv_cmd_open_xrcd refused::number
ibv_cmd_poll_cq refused::number
ibv_cmd_post_recv refused::number
ibv_cmd_post_send refused::number
ibv_cmd_post_srq_recv refused::number
ibv_cmd_query_context refused::number
ibv_cmd_query_device_any refused::number
ibv_cmd_query_mr refused::number
ibv_cmd_query_port refused::number
ibv_cmd_query_qp refused::number
ibv_cmd_query_srq refused::number
ibv_cmd_read_counters refused::number
ibv_cmd_reg_dm_mr refused::number
ibv_cmd_reg_dmabuf_mr refused::number
ibv_cmd_reg_mr refused::number
ibv_cmd_req_notify_cq refused::number
ibv_cmd_rereg_mr refused::number
ibv_cmd_resize_cq refused::number
ibv_query_gid_type device::query_gid_type
ibv_read_ibdev_sysfs_file refused::number
verbs_allow_disassociate_destroy refused::number
verbs_init_cq refused::nothing
verbs_open_device refused::pointer
verbs_register_driver_34 refused::nothing
verbs_set_ops refused::nothing
verbs_uninit_context refused::nothing
RDMACM_1.0
rdma_accept connect::accept
rdma_ack_cm_event event::ack
rdma_bind_addr connect::bind_addr
rdma_connect connect::connect
rdma_create_ep endpoint::create_ep
rdma_create_event_channel event::create_channel
rdma_create_id cm::create_id
rdma_create_qp endpoint::create_qp
rdma_create_qp_ex endpoint::create_qp_ex
rdma_create_srq endpoint::create_srq
rdma_create_srq_ex endpoint::create_srq_ex
rdma_destroy_ep endpoint::destroy_ep
rdma_destroy_event_channel event::destroy_channel
rdma_destroy_id cm::destroy_id
rdma_destroy_qp endpoint::destroy_qp
rdma_destroy_srq endpoint::destroy_srq
rdma_disconnect connect::disconnect
rdma_event_str names::cm_event
rdma_free_devices device::free_devices
rdma_freeaddrinfo address::free_info
rdma_get_cm_event event::get
rdma_get_devices device::devices
rdma_get_dst_port cm::dst_port
rdma_get_request endpoint::get_request
rdma_get_src_port cm::src_port
rdma_getaddrinfo address::get_info
rdma_join_multicast refused::minus_one
rdma_leave_multicast refused::minus_one
rdma_listen connect::listen
rdma_migrate_id event::migrate
rdma_notify cm::notify
rdma_reject connect::reject
rdma_resolve_addr connect::resolve_addr
rdma_resolve_route connect::resolve_route
rdma_set_option cm::set_option
raccept rsocket::accept
rbind rsocket::bind
rclose rsocket::close
rconnect rsocket::connect
rfcntl rsocket::fcntl
rgetpeername rsocket::getpeername
rgetsockname rsocket::getsockname
rgetsockopt rsocket::getsockopt
riomap refused::minus_one
riounmap refused::minus_one
riowrite refused::minus_one
rlisten rsocket::listen
rpoll rsocket::poll
rread rsocket::read
rreadv rsocket::readv
rrecv rsocket::recv
rrecvfrom rsocket::recvfrom
rrecvmsg rsocket::recvmsg
rselect rsocket::select
rsend rsocket::send
rsendmsg rsocket::sendmsg
rsendto rsocket::sendto
rsetsockopt rsocket::setsockopt
rshutdown rsocket::shutdown
rsocket rsocket::socket
rwrite rsocket::write
rwritev rsocket::writev
RDMACM_1.1
rdma_join_multicast_ex refused::minus_one
RDMACM_1.2
rdma_establish connect::establish
rdma_init_qp_attr cm::init_qp_attr
RDMACM_1.3
rdma_get_remote_ece refused::minus_one
rdma_reject_ece refused::minus_one
rdma_set_local_ece refused::minus_one";
