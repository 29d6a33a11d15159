/* A program of its own on libibverbs and librdmacm: misuse, statuses, events, many objects.
 * Each test is one process or two; its name is the first argument. Prints "right" at the end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                   \
    do {                                                                              \
        if (!(what)) {                                                                \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);      \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

struct side {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *memory;
};

#define BYTES 65536

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int kind)
{
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if ((int)event->event != kind) {
        fprintf(stderr, "event %s, status %d, not %s\n", rdma_event_str(event->event),
                event->status, rdma_event_str(kind));
        exit(1);
    }
    return event;
}

static void expect(struct rdma_event_channel *channel, int kind)
{
    CHECK(rdma_ack_cm_event(next_event(channel, kind)) == 0);
}

static void prepare(struct side *side, struct rdma_cm_id *id, int inline_bytes)
{
    side->id = id;
    side->pd = ibv_alloc_pd(id->verbs);
    CHECK(side->pd);
    side->completions = ibv_create_comp_channel(id->verbs);
    CHECK(side->completions);
    side->cq = ibv_create_cq(id->verbs, 64, side, side->completions, 0);
    CHECK(side->cq);
    struct ibv_qp_init_attr attr = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
                .max_inline_data = inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    CHECK(rdma_create_qp(id, side->pd, &attr) == 0);
    side->memory = calloc(1, BYTES);
    side->mr = ibv_reg_mr(side->pd, side->memory, BYTES,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(side->mr);
}

static void release(struct side *side)
{
    CHECK(ibv_destroy_cq(side->cq) == EBUSY);
    CHECK(ibv_dealloc_pd(side->pd) == EBUSY);
    rdma_destroy_qp(side->id);
    CHECK(ibv_dereg_mr(side->mr) == 0);
    CHECK(ibv_destroy_cq(side->cq) == 0);
    CHECK(ibv_destroy_comp_channel(side->completions) == 0);
    CHECK(ibv_dealloc_pd(side->pd) == 0);
    CHECK(rdma_destroy_id(side->id) == 0);
    free(side->memory);
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static struct rdma_cm_id *listening(struct rdma_event_channel *channel, int *port)
{
    struct rdma_cm_id *id;
    struct sockaddr_in address = loopback(0);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    *port = ntohs(rdma_get_src_port(id));
    CHECK(*port != 0);
    CHECK(rdma_listen(id, 128) == 0);
    return id;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, int port)
{
    struct rdma_cm_id *id;
    struct sockaddr_in address = loopback(port);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

/* Two sides in one process, connected. */
static void connected(struct side *a, struct side *b)
{
    struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4};
    int port;
    memset(a, 0, sizeof *a);
    memset(b, 0, sizeof *b);
    a->channel = rdma_create_event_channel();
    b->channel = rdma_create_event_channel();
    CHECK(a->channel && b->channel);
    struct rdma_cm_id *listener = listening(b->channel, &port);
    prepare(a, resolved(a->channel, port), 64);
    param.private_data = "hello";
    param.private_data_len = 6;
    CHECK(rdma_connect(a->id, &param) == 0);
    struct rdma_cm_event *event = next_event(b->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(event->listen_id == listener && event->param.conn.private_data_len == 6);
    CHECK(strcmp(event->param.conn.private_data, "hello") == 0);
    prepare(b, event->id, 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    param.private_data = "world";
    CHECK(rdma_accept(b->id, &param) == 0);
    expect(b->channel, RDMA_CM_EVENT_ESTABLISHED);
    event = next_event(a->channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(event->param.conn.private_data_len == 6);
    CHECK(strcmp(event->param.conn.private_data, "world") == 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    CHECK(rdma_destroy_id(listener) == 0);
}

static void disconnected(struct side *a, struct side *b)
{
    CHECK(rdma_disconnect(a->id) == 0);
    expect(b->channel, RDMA_CM_EVENT_DISCONNECTED);
    CHECK(rdma_disconnect(b->id) == 0);
    expect(a->channel, RDMA_CM_EVENT_DISCONNECTED);
    release(a);
    release(b);
    rdma_destroy_event_channel(a->channel);
    rdma_destroy_event_channel(b->channel);
}

static struct ibv_wc polled(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int count;
    memset(&wc, 0, sizeof wc);
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(count == 1);
    return wc;
}

static int empty(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    return ibv_poll_cq(cq, 1, &wc) == 0;
}

static int post(struct side *side, int opcode, int flags, struct ibv_sge *sge, struct side *peer,
                uint64_t at)
{
    struct ibv_send_wr wr = {.wr_id = 7, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode,
                             .send_flags = flags, .imm_data = htonl(0x01020304)};
    struct ibv_send_wr *bad = NULL;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)peer->memory + at;
        wr.wr.atomic.rkey = peer->mr->rkey;
        wr.wr.atomic.compare_add = 5;
        wr.wr.atomic.swap = 99;
    } else if (peer) {
        wr.wr.rdma.remote_addr = (uintptr_t)peer->memory + at;
        wr.wr.rdma.rkey = peer->mr->rkey;
    }
    int outcome = ibv_post_send(side->id->qp, &wr, &bad);
    CHECK(outcome == 0 ? bad == NULL : bad == &wr);
    return outcome;
}

static struct ibv_sge piece(struct side *side, uint64_t at, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)side->memory + at, bytes, side->mr->lkey};
    return sge;
}

static int receive(struct side *side, uint64_t id, uint64_t at, uint32_t bytes)
{
    struct ibv_sge sge = piece(side, at, bytes);
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(side->id->qp, &wr, &bad);
}

/* Every operation, and what its completions say. */
static void operations(void)
{
    struct side a, b;
    connected(&a, &b);
    struct ibv_sge sge = piece(&a, 0, 100);
    memset(a.memory, 'x', 100);
    CHECK(receive(&b, 1, 1000, 200) == 0);
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_SIGNALED, &sge, NULL, 0) == 0);
    struct ibv_wc wc = polled(b.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 100);
    CHECK(wc.wr_id == 1 && wc.qp_num == b.id->qp->qp_num && wc.wc_flags == 0);
    CHECK(memcmp(b.memory + 1000, a.memory, 100) == 0);
    wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 7);
    /* Immediate data with a message, and with a write, which takes a receive. */
    CHECK(receive(&b, 2, 2000, 200) == 0 && receive(&b, 3, 3000, 200) == 0);
    CHECK(post(&a, IBV_WR_SEND_WITH_IMM, 0, &sge, NULL, 0) == 0);
    CHECK(post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, &sge, &b, 5000) == 0);
    wc = polled(b.cq);
    CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_RECV && wc.wc_flags == IBV_WC_WITH_IMM);
    CHECK(ntohl(wc.imm_data) == 0x01020304 && wc.byte_len == 100);
    wc = polled(b.cq);
    CHECK(wc.wr_id == 3 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 100);
    CHECK(wc.wc_flags == IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0x01020304);
    CHECK(memcmp(b.memory + 5000, a.memory, 100) == 0);
    wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
    /* A read, both atomics, an inline message whose memory may change at once. */
    memset(b.memory + 7000, 'y', 300);
    sge = piece(&a, 8000, 300);
    CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &b, 7000) == 0);
    wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 300);
    CHECK(memcmp(a.memory + 8000, b.memory + 7000, 300) == 0);
    uint64_t *word = (uint64_t *)(b.memory + 64), *old = (uint64_t *)(a.memory + 64);
    *word = 5;
    sge = piece(&a, 64, 8);
    CHECK(post(&a, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_SEND_SIGNALED, &sge, &b, 64) == 0);
    wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_COMP_SWAP && *old == 5 && *word == 99);
    CHECK(post(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, &sge, &b, 64) == 0);
    wc = polled(a.cq);
    CHECK(wc.opcode == IBV_WC_FETCH_ADD && *old == 99 && *word == 104);
    CHECK(receive(&b, 4, 9000, 64) == 0);
    char text[32] = "as it was";
    struct ibv_sge copied = {(uintptr_t)text, sizeof text, 0};
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_INLINE, &copied, NULL, 0) == 0);
    strcpy(text, "changed");
    wc = polled(b.cq);
    CHECK(wc.wr_id == 4 && strcmp(b.memory + 9000, "as it was") == 0);
    /* Work without a completion leaves none. */
    CHECK(empty(a.cq) && empty(b.cq));
    disconnected(&a, &b);
}

/* What a peer refuses is reported to the one that asked, and flushes what is behind it. */
static void faults(void)
{
    for (int round = 0; round < 4; round++) {
        struct side a, b;
        connected(&a, &b);
        struct ibv_sge sge = piece(&a, 0, 8);
        struct ibv_mr *foreign = NULL;
        struct ibv_pd *other = ibv_alloc_pd(b.id->verbs);
        uint64_t at = 0;
        struct side named = b;
        struct ibv_mr wrong = *b.mr;
        named.mr = &wrong;
        int opcode = round == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        if (round == 0)
            wrong.rkey ^= 0x5555;
        if (round == 2)
            at = BYTES - 4;
        if (round == 1 || round == 3) {
            /* Memory of another domain. */
            foreign = ibv_reg_mr(other, b.memory, BYTES,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_READ);
            CHECK(foreign);
            wrong.rkey = foreign->rkey;
        }
        CHECK(receive(&a, 9, 100, 8) == 0);
        CHECK(post(&a, opcode, IBV_SEND_SIGNALED, &sge, &named, at) == 0);
        post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0);
        struct ibv_wc wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 7);
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
        expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
        expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
        CHECK(a.id->qp->state == IBV_QPS_ERR);
        /* A pair in error flushes what is posted to it. */
        CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
        CHECK(polled(a.cq).status == IBV_WC_WR_FLUSH_ERR);
        CHECK(receive(&a, 11, 0, 8) == 0);
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 11);
        struct ibv_async_event event;
        CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
        CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.id->qp);
        ibv_ack_async_event(&event);
        if (foreign)
            CHECK(ibv_dereg_mr(foreign) == 0);
        CHECK(ibv_dealloc_pd(other) == 0);
        release(&a);
        release(&b);
        rdma_destroy_event_channel(a.channel);
        rdma_destroy_event_channel(b.channel);
    }
    /* This side's own memory: refused in its place. */
    struct side a, b;
    connected(&a, &b);
    struct ibv_sge sge = piece(&a, 0, 8);
    sge.lkey ^= 0x1111;
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    CHECK(polled(a.cq).status == IBV_WC_LOC_PROT_ERR);
    expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
    expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&a);
    release(&b);
}

/* Requests for events: one for each, solicited or any, none lost, none too many. */
static void events(void)
{
    struct side a, b;
    connected(&a, &b);
    struct ibv_sge sge = piece(&a, 0, 8);
    struct pollfd ready = {b.completions->fd, POLLIN, 0};
    struct ibv_cq *cq;
    void *context;
    fcntl(b.completions->fd, F_SETFL, fcntl(b.completions->fd, F_GETFL) | O_NONBLOCK);
    CHECK(ibv_get_cq_event(b.completions, &cq, &context) == -1 && errno == EAGAIN);
    for (int i = 0; i < 8; i++)
        CHECK(receive(&b, i, 64 * i, 64) == 0);
    CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    CHECK(poll(&ready, 1, 100) == 0);
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_SOLICITED, &sge, NULL, 0) == 0);
    CHECK(poll(&ready, 1, 5000) == 1);
    CHECK(ibv_get_cq_event(b.completions, &cq, &context) == 0);
    CHECK(cq == b.cq && context == &b);
    ibv_ack_cq_events(cq, 1);
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_SOLICITED, &sge, NULL, 0) == 0);
    CHECK(poll(&ready, 1, 100) == 0);
    for (int i = 0; i < 3; i++)
        polled(b.cq);
    /* One event for two completions. */
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    CHECK(poll(&ready, 1, 5000) == 1);
    CHECK(ibv_get_cq_event(b.completions, &cq, &context) == 0);
    polled(b.cq);
    polled(b.cq);
    CHECK(poll(&ready, 1, 100) == 0);
    ibv_ack_cq_events(cq, 1);
    disconnected(&a, &b);
}

/* Send queues: slots are taken until their completions are polled. */
static void slots(void)
{
    struct side a, b;
    connected(&a, &b);
    struct ibv_sge sge = piece(&a, 0, 8);
    for (int i = 0; i < 16; i++)
        CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == ENOMEM);
    CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
    for (int i = 0; i < 16; i++)
        CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
    for (int i = 0; i < 16; i++)
        CHECK(receive(&b, i, 0, 8) == 0);
    CHECK(receive(&b, 16, 0, 8) == ENOMEM);
    /* Those without completions free their slots by themselves. */
    for (int i = 0; i < 1000; i++)
        while (post(&a, IBV_WR_RDMA_WRITE, 0, &sge, &b, 0) != 0)
            CHECK(empty(a.cq));
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
    CHECK(polled(a.cq).status == IBV_WC_SUCCESS && empty(a.cq));
    disconnected(&a, &b);
}

/* Bad arguments are refused, each with its number. */
static void misuse(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1 && !list[1]);
    CHECK(strcmp(ibv_get_device_name(list[0]), "sidecore0") == 0);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    CHECK(!ibv_open_device(NULL) && errno == EINVAL);
    CHECK(!ibv_alloc_pd(NULL) && errno == EINVAL);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    char memory[64];
    CHECK(!ibv_reg_mr(NULL, memory, 64, 0) && errno == EINVAL);
    CHECK(!ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK(!ibv_reg_mr(pd, memory, SIZE_MAX, 0) && errno == EINVAL);
    CHECK(ibv_dereg_mr(NULL) == EINVAL && ibv_dealloc_pd(NULL) == EINVAL);
    CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
    CHECK(!ibv_create_cq(context, 10, NULL, NULL, 7) && errno == EINVAL);
    CHECK(ibv_destroy_cq(NULL) == EINVAL && ibv_destroy_qp(NULL) == EINVAL);
    struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    CHECK(cq && empty(cq));
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
    CHECK(!ibv_create_qp(pd, &attr) && errno == EOPNOTSUPP);
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_sge = 100;
    CHECK(!ibv_create_qp(pd, &attr) && errno == EINVAL);
    attr.cap.max_send_sge = 1;
    attr.recv_cq = NULL;
    CHECK(!ibv_create_qp(pd, &attr) && errno == EINVAL);
    attr.recv_cq = cq;
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp && qp->state == IBV_QPS_RESET && !ibv_qp_to_qp_ex(qp));
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_recv_wr receive = {.num_sge = -1}, *bad_receive;
    CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT};
    CHECK(ibv_modify_qp(qp, &state, IBV_QP_STATE) == EINVAL && qp->state == IBV_QPS_RESET);
    CHECK(!ibv_create_ah(pd, NULL) && errno == EINVAL && ibv_destroy_ah(NULL) == EINVAL);
    CHECK(ibv_destroy_cq(cq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    struct rdma_cm_id *id;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == -1 && errno == EOPNOTSUPP);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_listen(id, 1) == -1 && errno == EINVAL);
    CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
    CHECK(rdma_accept(id, NULL) == -1 && errno == EINVAL);
    CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
    CHECK(rdma_destroy_id(NULL) == -1 && rdma_bind_addr(id, NULL) == -1);
    struct sockaddr_in far = loopback(1);
    far.sin_addr.s_addr = inet_addr("203.0.113.9");
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&far) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_destroy_id(id) == 0);
    /* A port that nothing listens at. */
    id = resolved(channel, 1);
    /* Its queues of before are freed memory. */
    attr.send_cq = attr.recv_cq = NULL;
    CHECK(rdma_create_qp(id, pd, &attr) == 0);
    CHECK(rdma_connect(id, NULL) == 0);
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
    CHECK(event->status == -ECONNREFUSED && rdma_ack_cm_event(event) == 0);
    rdma_destroy_ep(id);
    rdma_destroy_event_channel(channel);
    /* What is left in a context goes with it, and names nothing. */
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 64, 0);
    attr.send_cq = attr.recv_cq = cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    qp = ibv_create_qp(pd, &attr);
    CHECK(mr && cq && qp && ibv_req_notify_cq(cq, 0) == 0);
    CHECK(ibv_close_device(context) == 0);
    CHECK(ibv_destroy_qp(qp) == EINVAL && ibv_destroy_cq(cq) == EINVAL);
    CHECK(ibv_dereg_mr(mr) == EINVAL && ibv_dealloc_pd(pd) == EINVAL);
    CHECK(ibv_close_device(context) == -1 && errno == EINVAL);
}

/* The interface's newer calls: pairs that write work in steps, queues that show it in steps. */
static void extended(void)
{
    struct side a, b;
    connected(&a, &b);
    rdma_destroy_qp(b.id);
    CHECK(rdma_disconnect(a.id) == 0);
    expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&a);
    /* A new connection, whose active side is extended. */
    int port;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = listening(channel, &port), *id = resolved(a.channel, port);
    struct ibv_cq_init_attr_ex queue = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(id->verbs, &queue);
    CHECK(cq);
    queue.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    CHECK(!ibv_create_cq_ex(id->verbs, &queue) && errno == EOPNOTSUPP);
    a.pd = ibv_alloc_pd(id->verbs);
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = a.pd,
        .send_ops_flags = IBV_QP_EX_WITH_TSO};
    CHECK(rdma_create_qp_ex(id, &attr) == -1 && errno == EOPNOTSUPP);
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND_WITH_IMM;
    CHECK(rdma_create_qp_ex(id, &attr) == 0);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(id->qp);
    CHECK(qp);
    a.memory = calloc(1, BYTES);
    a.mr = ibv_reg_mr(a.pd, a.memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
    CHECK(rdma_connect(id, NULL) == 0);
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct side c = {.channel = channel};
    prepare(&c, event->id, 0);
    rdma_ack_cm_event(event);
    CHECK(receive(&c, 1, 0, 64) == 0 && receive(&c, 2, 64, 64) == 0);
    CHECK(rdma_accept(c.id, NULL) == 0);
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    expect(a.channel, RDMA_CM_EVENT_ESTABLISHED);
    strcpy(a.memory, "one");
    strcpy(a.memory + 100, "two");
    ibv_wr_start(qp);
    qp->wr_id = 21;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    struct ibv_sge list[2] = {piece(&a, 0, 3), piece(&a, 100, 4)};
    ibv_wr_set_sge_list(qp, 2, list);
    qp->wr_id = 22;
    ibv_wr_rdma_write(qp, c.mr->rkey, (uintptr_t)c.memory + 500);
    ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 4);
    qp->wr_id = 23;
    qp->wr_flags = 0;
    ibv_wr_send_imm(qp, htonl(77));
    char text[8] = "inline";
    ibv_wr_set_inline_data(qp, text, sizeof text);
    CHECK(ibv_wr_complete(qp) == 0);
    memset(text, 0, sizeof text);
    /* More than there is room for: nothing of it is posted. */
    ibv_wr_start(qp);
    for (int i = 0; i < 5; i++) {
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 4);
    }
    CHECK(ibv_wr_complete(qp) == ENOMEM);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_abort(qp);
    struct ibv_poll_cq_attr none = {0};
    while (ibv_start_poll(cq, &none) == ENOENT)
        ;
    CHECK(cq->wr_id == 21 && cq->status == IBV_WC_SUCCESS);
    CHECK(ibv_wc_read_opcode(cq) == IBV_WC_SEND && ibv_wc_read_byte_len(cq) == 7);
    CHECK(ibv_wc_read_qp_num(cq) == id->qp->qp_num);
    while (ibv_next_poll(cq) == ENOENT)
        ;
    CHECK(cq->wr_id == 22 && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
    ibv_end_poll(cq);
    CHECK(ibv_start_poll(cq, &none) == ENOENT);
    struct ibv_wc wc = polled(c.cq);
    CHECK(wc.wr_id == 1 && wc.byte_len == 7 && strcmp(c.memory, "onetwo") == 0);
    CHECK(strcmp(c.memory + 500, "one") == 0);
    wc = polled(c.cq);
    CHECK(wc.wr_id == 2 && ntohl(wc.imm_data) == 77 && strcmp(c.memory + 64, "inline") == 0);
    rdma_destroy_qp(id);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dereg_mr(a.mr) == 0);
    CHECK(ibv_dealloc_pd(a.pd) == 0 && rdma_destroy_id(id) == 0);
    expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&c);
    CHECK(rdma_destroy_id(listener) == 0);
}

/* Receives of two pairs come from one queue, which says when few are left. */
static void shared(void)
{
    struct side a, b;
    connected(&a, &b);
    int port;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = listening(channel, &port);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
    CHECK(srq);
    struct ibv_srq_attr limit = {.srq_limit = 3};
    struct rdma_cm_id *active[2], *passive[2];
    for (int i = 0; i < 8; i++) {
        struct ibv_sge sge = piece(&b, 64 * i, 64);
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attr = {.send_cq = b.cq, .recv_cq = b.cq, .qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = 8, .max_send_sge = 1}};
        active[i] = resolved(a.channel, port);
        CHECK(rdma_create_qp(active[i], b.pd, &attr) == 0);
        CHECK(rdma_connect(active[i], NULL) == 0);
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        passive[i] = event->id;
        rdma_ack_cm_event(event);
        attr.srq = srq;
        attr.send_cq = attr.recv_cq = a.cq;
        CHECK(rdma_create_qp(passive[i], b.pd, &attr) == 0);
        struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
        CHECK(ibv_post_recv(passive[i]->qp, &wr, &bad) == EINVAL);
        CHECK(rdma_accept(passive[i], NULL) == 0);
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        expect(a.channel, RDMA_CM_EVENT_ESTABLISHED);
    }
    for (int i = 0; i < 6; i++) {
        struct ibv_sge sge = {(uintptr_t)&i, sizeof i, 0};
        CHECK(rdma_post_sendv(active[i % 2], NULL, &sge, 1, IBV_SEND_INLINE) == 0);
        struct ibv_wc wc = polled(a.cq);
        CHECK(wc.wr_id == (uint64_t)i && wc.qp_num == passive[i % 2]->qp->qp_num);
        CHECK(*(int *)(b.memory + 64 * i) == i);
    }
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    for (int i = 0; i < 2; i++) {
        rdma_destroy_qp(active[i]);
        CHECK(rdma_destroy_id(active[i]) == 0);
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
        CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
        ibv_ack_async_event(&event);
        rdma_destroy_qp(passive[i]);
        CHECK(rdma_destroy_id(passive[i]) == 0);
    }
    CHECK(ibv_destroy_srq(srq) == 0 && rdma_destroy_id(listener) == 0);
    disconnected(&a, &b);
}

/* A target that calls nothing sees writes all the same. */
static void memory(void)
{
    struct side a, b;
    connected(&a, &b);
    struct ibv_sge sge = piece(&a, 0, 1);
    volatile char *seen = b.memory;
    for (int i = 1; i <= 100; i++) {
        a.memory[0] = i;
        CHECK(post(&a, IBV_WR_RDMA_WRITE, 0, &sge, &b, 0) == 0);
        while (*seen != i)
            ;
    }
    disconnected(&a, &b);
}

/* The peer's reason comes with a rejection; a request that is not read is rejected, too. */
static void rejected(void)
{
    int port;
    struct side a = {0};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = listening(channel, &port);
    a.channel = rdma_create_event_channel();
    for (int round = 0; round < 2; round++) {
        prepare(&a, resolved(a.channel, port), 0);
        CHECK(rdma_connect(a.id, NULL) == 0);
        struct pollfd ready = {channel->fd, POLLIN, 0};
        CHECK(poll(&ready, 1, 5000) == 1);
        if (round == 0) {
            struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
            struct rdma_cm_id *id = event->id;
            CHECK(rdma_reject(id, "no", 3) == 0);
            rdma_ack_cm_event(event);
            CHECK(rdma_destroy_id(id) == 0);
        } else {
            CHECK(rdma_destroy_id(listener) == 0);
        }
        struct rdma_cm_event *event = next_event(a.channel, RDMA_CM_EVENT_REJECTED);
        CHECK(event->status != 0);
        if (round == 0)
            CHECK(event->param.conn.private_data_len == 3 &&
                  strcmp(event->param.conn.private_data, "no") == 0);
        rdma_ack_cm_event(event);
        release(&a);
    }
}

static long resident_kib(void)
{
    long pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) != -1;
    return count;
}

/* Objects that are created and destroyed leave nothing. */
static void leaks(void)
{
    struct side a, b;
    struct ibv_context *context;
    struct ibv_device **list = ibv_get_device_list(NULL);
    int rounds = 10000;
    char *memory = malloc(4096);
    long before = 0;
    int open = 0;
    for (int i = 0; i < rounds; i++) {
        context = ibv_open_device(list[0]);
        struct ibv_pd *pd = ibv_alloc_pd(context);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
        struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, channel, 0);
        struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = 10, .max_recv_wr = 10}};
        struct ibv_srq_init_attr shared = {.attr = {.max_wr = 10}};
        struct ibv_srq *srq = ibv_create_srq(pd, &shared);
        attr.srq = srq;
        struct ibv_qp *qp = ibv_create_qp(pd, &attr);
        CHECK(context && pd && mr && channel && cq && srq && qp);
        CHECK(ibv_destroy_srq(srq) == EBUSY);
        CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
        CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
        CHECK(!ibv_close_device(context));
        /* Connections, too; the first ones warm everything up. */
        if (i % 50 == 0) {
            connected(&a, &b);
            disconnected(&a, &b);
        }
        if (i == rounds / 10) {
            before = resident_kib();
            open = descriptors();
        }
    }
    CHECK(resident_kib() < before + 4096);
    CHECK(descriptors() <= open + 2);
    free(memory);
    ibv_free_device_list(list);
}

/* A million regions, paid for as they come. */
static void regions(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int count = 1000000;
    struct ibv_mr **all = malloc(count * sizeof *all);
    char *memory = malloc(4096);
    CHECK(resident_kib() < 64 * 1024);
    for (int i = 0; i < count; i++) {
        all[i] = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        CHECK(all[i]);
    }
    for (int i = 0; i < count; i++)
        CHECK(ibv_dereg_mr(all[i]) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* A peer that is killed: its work and its connection end at once. */
static void killed(void)
{
    int ports[2], port;
    CHECK(pipe(ports) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct side side;
    memset(&side, 0, sizeof side);
    if (child == 0) {
        struct rdma_event_channel *channel = rdma_create_event_channel();
        listening(channel, &port);
        CHECK(write(ports[1], &port, sizeof port) == sizeof port);
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        prepare(&side, event->id, 0);
        CHECK(rdma_accept(side.id, &param) == 0);
        for (;;)
            pause();
    }
    side.channel = rdma_create_event_channel();
    CHECK(read(ports[0], &port, sizeof port) == sizeof port);
    prepare(&side, resolved(side.channel, port), 0);
    CHECK(receive(&side, 3, 0, 64) == 0);
    CHECK(rdma_connect(side.id, &param) == 0);
    expect(side.channel, RDMA_CM_EVENT_ESTABLISHED);
    struct timespec begun, ended;
    CHECK(ibv_req_notify_cq(side.cq, 0) == 0);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(side.completions, &cq, &context) == 0);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc = polled(side.cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 3);
    expect(side.channel, RDMA_CM_EVENT_DISCONNECTED);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    /* Far below any time limit of a connection. */
    CHECK(ended.tv_sec - begun.tv_sec < 4);
    release(&side);
}

/* Many connections of two processes, on one queue each; every one of them works. */
static void many(void)
{
    enum { COUNT = 1000 };
    int ports[2], port;
    CHECK(pipe(ports) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct rdma_cm_id *listener = NULL, **ids = calloc(COUNT, sizeof *ids);
    struct rdma_cm_event *event;
    struct ibv_pd *pd = NULL;
    struct ibv_cq *cq = NULL;
    struct ibv_mr *mr = NULL;
    static uint64_t words[COUNT];
    if (child == 0) {
        listener = listening(channel, &port);
        CHECK(write(ports[1], &port, sizeof port) == sizeof port);
    } else {
        CHECK(read(ports[0], &port, sizeof port) == sizeof port);
    }
    for (int i = 0; i < COUNT; i++) {
        if (child == 0) {
            event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
            ids[i] = event->id;
            rdma_ack_cm_event(event);
        } else {
            ids[i] = resolved(channel, port);
        }
        if (!pd) {
            pd = ibv_alloc_pd(ids[i]->verbs);
            cq = ibv_create_cq(ids[i]->verbs, 2 * COUNT, NULL, NULL, 0);
            mr = ibv_reg_mr(pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE);
        }
        struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = 2, .max_recv_wr = 2,
                                                .max_send_sge = 1, .max_recv_sge = 1}};
        CHECK(rdma_create_qp(ids[i], pd, &attr) == 0);
        CHECK(rdma_post_recv(ids[i], NULL, &words[i], 8, mr) == 0);
        if (child == 0)
            CHECK(rdma_accept(ids[i], &param) == 0);
        else
            CHECK(rdma_connect(ids[i], &param) == 0);
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    }
    if (child != 0)
        for (uint64_t i = 0; i < COUNT; i++) {
            struct ibv_sge sge = {(uintptr_t)&i, 8, 0};
            CHECK(rdma_post_sendv(ids[i], NULL, &sge, 1, IBV_SEND_INLINE) == 0);
        }
    for (int i = 0; i < COUNT; i++) {
        struct ibv_wc wc = polled(cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
    }
    if (child == 0)
        for (uint64_t i = 0; i < COUNT; i++) {
            CHECK(words[i] == i);
            struct ibv_sge sge = {(uintptr_t)&words[i], 8, 0};
            CHECK(rdma_post_sendv(ids[i], NULL, &sge, 1, IBV_SEND_INLINE) == 0);
        }
    for (int i = 0; i < COUNT; i++) {
        if (child != 0)
            CHECK(words[i] == (uint64_t)i && rdma_disconnect(ids[i]) == 0);
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    }
    for (int i = 0; i < COUNT; i++) {
        rdma_destroy_qp(ids[i]);
        CHECK(rdma_destroy_id(ids[i]) == 0);
    }
    CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
    if (child == 0) {
        CHECK(rdma_destroy_id(listener) == 0);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Calls that wait for their event, by an identifier without a channel, and a pair for each request. */
static void waiting(void)
{
    char service[8], text[16] = "hello", answer[16] = "";
    int port, status;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    CHECK(rdma_destroy_id(listening(channel, &port)) == 0);
    rdma_destroy_event_channel(channel);
    snprintf(service, sizeof service, "%d", port);
    pid_t child = fork();
    CHECK(child >= 0);
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
                                            .max_recv_sge = 1, .max_inline_data = 16},
                                    .sq_sig_all = 1};
    struct rdma_cm_id *listener, *id;
    struct ibv_wc wc;
    if (child == 0) {
        hints.ai_flags = RAI_PASSIVE;
        CHECK(rdma_getaddrinfo("127.0.0.1", service, &hints, &info) == 0);
        CHECK(rdma_create_ep(&listener, info, NULL, &attr) == 0);
        CHECK(rdma_get_request(listener, &id) == -1 && errno == EINVAL);
        CHECK(rdma_listen(listener, 0) == 0);
        CHECK(rdma_get_request(listener, &id) == 0 && id->qp);
        struct ibv_mr *mr = rdma_reg_msgs(id, answer, sizeof answer);
        CHECK(mr && rdma_post_recv(id, NULL, answer, sizeof answer, mr) == 0);
        CHECK(rdma_accept(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
        CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
        CHECK(strcmp(answer, "hello") == 0);
        CHECK(rdma_post_send(id, NULL, answer, sizeof answer, NULL, IBV_SEND_INLINE) == 0);
        CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
        rdma_disconnect(id);
        CHECK(rdma_dereg_mr(mr) == 0);
        rdma_destroy_ep(id);
        rdma_destroy_ep(listener);
        rdma_freeaddrinfo(info);
        exit(0);
    }
    CHECK(rdma_getaddrinfo("127.0.0.1", service, &hints, &info) == 0);
    CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_dst_len == sizeof(struct sockaddr_in));
    struct timespec pause = {0, 20 * 1000 * 1000};
    for (int i = 0; i < 500; i++) {
        /* Refused until the other process listens. The call writes the queues that it makes. */
        struct ibv_qp_init_attr own = attr;
        CHECK(rdma_create_ep(&id, info, NULL, &own) == 0);
        if (rdma_connect(id, NULL) == 0)
            break;
        CHECK(errno == ECONNREFUSED);
        rdma_destroy_ep(id);
        nanosleep(&pause, NULL);
    }
    struct ibv_mr *mr = rdma_reg_msgs(id, answer, sizeof answer);
    CHECK(mr && rdma_post_recv(id, NULL, answer, sizeof answer, mr) == 0);
    CHECK(rdma_post_send(id, NULL, text, sizeof text, NULL, IBV_SEND_INLINE) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(strcmp(answer, "hello") == 0 && wc.byte_len == sizeof answer);
    rdma_disconnect(id);
    CHECK(rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(info);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Names and addresses, also of IPv6, and what both sides of a connection say of them. */
static void addresses(void)
{
    struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST}, *info;
    CHECK(rdma_getaddrinfo("no address", "7174", &hints, &info) != 0);
    CHECK(rdma_getaddrinfo(NULL, NULL, NULL, &info) != 0);
    CHECK(rdma_getaddrinfo("127.0.0.1", "7174", &hints, &info) == 0);
    CHECK(((struct sockaddr_in *)info->ai_dst_addr)->sin_port == htons(7174));
    CHECK(info->ai_src_len == sizeof(struct sockaddr_in) && !info->ai_next);
    rdma_freeaddrinfo(info);
    hints.ai_flags = RAI_PASSIVE;
    CHECK(rdma_getaddrinfo(NULL, "7174", &hints, &info) == 0);
    CHECK(info->ai_src_len > 0 && info->ai_dst_len == 0);
    rdma_freeaddrinfo(info);
    /* Without a name, the addresses are those of the hints. */
    struct sockaddr_in own = loopback(0), peer = loopback(7174);
    hints = (struct rdma_addrinfo){.ai_src_addr = (struct sockaddr *)&own, .ai_src_len = sizeof own};
    CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0);
    CHECK(info->ai_src_len == sizeof own && memcmp(info->ai_src_addr, &own, sizeof own) == 0);
    CHECK(info->ai_dst_len == 0);
    rdma_freeaddrinfo(info);
    hints.ai_dst_addr = (struct sockaddr *)&peer;
    hints.ai_dst_len = sizeof peer;
    CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0);
    CHECK(info->ai_dst_len == sizeof peer && memcmp(info->ai_dst_addr, &peer, sizeof peer) == 0);
    CHECK(info->ai_src_len == sizeof own);
    rdma_freeaddrinfo(info);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *id;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6}, six = any;
    six.sin6_addr = in6addr_loopback;
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)&any) == 0 && !listener->verbs);
    CHECK(rdma_listen(listener, 10) == 0);
    int port = ntohs(rdma_get_src_port(listener));
    for (int round = 0; round < 2; round++) {
        /* A listener of IPv6 takes peers of both kinds. */
        struct sockaddr_in four = loopback(port);
        six.sin6_port = htons(port);
        CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
        struct sockaddr *target = round ? (struct sockaddr *)&four : (struct sockaddr *)&six;
        CHECK(rdma_resolve_addr(id, NULL, target, 1000) == 0);
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        CHECK(rdma_resolve_route(id, 1000) == 0);
        expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        struct side a = {.channel = channel}, b = a;
        prepare(&a, id, 0);
        CHECK(rdma_connect(id, NULL) == 0);
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        prepare(&b, event->id, 0);
        rdma_ack_cm_event(event);
        CHECK(rdma_accept(b.id, NULL) == 0);
        for (int i = 0; i < 2; i++)
            expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        CHECK(rdma_get_peer_addr(b.id)->sa_family == (round ? AF_INET : AF_INET6));
        CHECK(rdma_get_src_port(a.id) == rdma_get_dst_port(b.id));
        CHECK(rdma_get_dst_port(a.id) == rdma_get_src_port(b.id));
        CHECK(memcmp(&a.id->route.addr.addr.ibaddr.sgid, &b.id->route.addr.addr.ibaddr.dgid, 16) == 0);
        CHECK(rdma_disconnect(a.id) == 0);
        for (int i = 0; i < 2; i++)
            expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        release(&a);
        release(&b);
    }
    /* The port is taken. */
    struct sockaddr_in four = loopback(port);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&four) == -1 && errno == EADDRINUSE);
    CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(channel);
}

/* Regions: their offsets, their rights, their end. */
static void rights(void)
{
    static const struct {
        int access, opcode, length, at, status;
    } cases[] = {
        {IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, 8, 0, IBV_WC_SUCCESS},
        {IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_SUCCESS},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ, 8, 0,
         IBV_WC_REM_ACCESS_ERR},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0,
         IBV_WC_REM_ACCESS_ERR},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0,
         IBV_WC_SUCCESS},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4,
         IBV_WC_REM_OP_ERR},
        {IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, 8, 4092, IBV_WC_REM_ACCESS_ERR},
        {IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, 0, 1 << 20, IBV_WC_SUCCESS},
        /* A key that is no longer valid. */
        {0, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_ACCESS_ERR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct side a, b;
        connected(&a, &b);
        struct ibv_sge sge = piece(&a, 0, cases[i].length);
        struct ibv_mr *mr = ibv_reg_mr_iova(b.pd, b.memory, 4096, 0x5000, cases[i].access);
        CHECK(mr);
        struct ibv_mr wrong = *mr;
        struct side named = b;
        named.mr = &wrong;
        if (cases[i].access == 0)
            CHECK(ibv_dereg_mr(mr) == 0);
        /* At another offset than its address. */
        uint64_t at = 0x5000 + cases[i].at - (uintptr_t)b.memory;
        CHECK(post(&a, cases[i].opcode, IBV_SEND_SIGNALED, &sge, &named, at) == 0);
        struct ibv_wc wc = polled(a.cq);
        if ((int)wc.status != cases[i].status) {
            fprintf(stderr, "case %zu: %s\n", i, ibv_wc_status_str(wc.status));
            exit(1);
        }
        if (cases[i].access != 0) {
            /* Other rights, by another key. */
            uint32_t old = mr->rkey;
            CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                               IBV_ACCESS_LOCAL_WRITE) == 0);
            CHECK(mr->rkey != old && mr->length == 4096 && mr->addr == b.memory);
            CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                               IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_INPUT);
            CHECK(ibv_dereg_mr(mr) == 0);
        }
        rdma_disconnect(a.id);
        expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
        expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
        struct ibv_async_event event;
        if (cases[i].status != IBV_WC_SUCCESS) {
            CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
            ibv_ack_async_event(&event);
        }
        release(&a);
        release(&b);
        rdma_destroy_event_channel(a.channel);
        rdma_destroy_event_channel(b.channel);
    }
}

/* Messages of all lengths, gathered and scattered; one that is longer than its receive. */
static void lengths(void)
{
    static const uint32_t all[] = {0, 1, 2, 1000, 65535, 65536, 65537, 1 << 20, 16 << 20};
    struct side a, b;
    connected(&a, &b);
    uint32_t most = 16 << 20;
    unsigned char *from = malloc(most), *into = malloc(most);
    struct ibv_mr *sent = ibv_reg_mr(a.pd, from, most, 0);
    struct ibv_mr *got = ibv_reg_mr(b.pd, into, most, IBV_ACCESS_LOCAL_WRITE);
    CHECK(sent && got);
    for (uint32_t i = 0; i < most; i++)
        from[i] = i * 7 + (i >> 11);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint32_t bytes = all[i], half = bytes / 3;
        memset(into, 0, bytes);
        struct ibv_sge in[2] = {{(uintptr_t)into, bytes - half, got->lkey},
                                {(uintptr_t)into + bytes - half, half, got->lkey}};
        struct ibv_recv_wr receive = {.wr_id = i, .sg_list = in, .num_sge = 2}, *bad_receive;
        CHECK(ibv_post_recv(b.id->qp, &receive, &bad_receive) == 0);
        struct ibv_sge out[2] = {{(uintptr_t)from, half, sent->lkey},
                                 {(uintptr_t)from + half, bytes - half, sent->lkey}};
        struct ibv_send_wr send = {.sg_list = out, .num_sge = 2, .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED}, *bad;
        CHECK(ibv_post_send(a.id->qp, &send, &bad) == 0);
        struct ibv_wc wc = polled(b.cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == bytes && wc.wr_id == i);
        CHECK(memcmp(from, into, bytes) == 0);
        CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
    }
    struct ibv_sge out[6], in[6];
    for (int i = 0; i < 6; i++) {
        out[i] = (struct ibv_sge){(uintptr_t)from + 1000 * i, 100, sent->lkey};
        in[i] = (struct ibv_sge){(uintptr_t)into + 2000 * i, 100, got->lkey};
    }
    struct ibv_recv_wr scattered = {.wr_id = 40, .sg_list = in, .num_sge = 6}, *bad_receive;
    struct ibv_send_wr gathered = {.sg_list = out, .num_sge = 6, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_recv(b.id->qp, &scattered, &bad_receive) == 0);
    CHECK(ibv_post_send(a.id->qp, &gathered, &bad) == 0);
    CHECK(polled(b.cq).byte_len == 600);
    for (int i = 0; i < 6; i++)
        CHECK(memcmp(into + 2000 * i, from + 1000 * i, 100) == 0);
    struct ibv_sge sge = piece(&a, 0, 100);
    CHECK(receive(&b, 50, 0, 99) == 0);
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    struct ibv_wc wc = polled(b.cq);
    CHECK(wc.wr_id == 50 && wc.status == IBV_WC_WR_FLUSH_ERR);
    expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
    expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_FATAL);
    ibv_ack_async_event(&event);
    CHECK(ibv_dereg_mr(sent) == 0 && ibv_dereg_mr(got) == 0);
    release(&a);
    release(&b);
    free(from);
    free(into);
}

/* A message ends the use of a key of its receiver. */
static void invalidated(void)
{
    struct side a, b;
    connected(&a, &b);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.memory, 4096,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr && receive(&b, 1, 8192, 64) == 0);
    struct ibv_sge sge = piece(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
                             .invalidate_rkey = mr->rkey}, *bad;
    CHECK(ibv_post_send(a.id->qp, &wr, &bad) == 0);
    struct ibv_wc wc = polled(b.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags == IBV_WC_WITH_INV);
    CHECK(wc.invalidated_rkey == mr->rkey);
    struct side named = b;
    named.mr = mr;
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &named, 0) == 0);
    CHECK(polled(a.cq).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == 0);
    expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
    expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(b.id->verbs, &event) == 0);
    ibv_ack_async_event(&event);
    release(&a);
    release(&b);
}

/* Events that were not read move to another channel, and go with their identifier. */
static void migrated(void)
{
    int port;
    struct rdma_event_channel *first = rdma_create_event_channel();
    struct rdma_event_channel *second = rdma_create_event_channel();
    struct rdma_cm_id *listener = listening(first, &port), *id;
    struct sockaddr_in address = loopback(port);
    struct pollfd ready[2] = {{first->fd, POLLIN, 0}, {second->fd, POLLIN, 0}};
    CHECK(rdma_create_id(first, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
    CHECK(poll(ready, 2, 1000) == 1 && ready[0].revents == POLLIN);
    CHECK(rdma_migrate_id(id, second) == 0 && id->channel == second);
    CHECK(poll(ready, 2, 1000) == 1 && ready[1].revents == POLLIN);
    struct rdma_cm_event *event = next_event(second, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(event->id == id && event->status == 0 && rdma_ack_cm_event(event) == 0);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    CHECK(rdma_destroy_id(id) == 0);
    CHECK(poll(ready, 2, 50) == 0);
    /* A listener's requests come to where it is. */
    CHECK(rdma_migrate_id(listener, second) == 0);
    struct side a = {.channel = first};
    prepare(&a, resolved(first, port), 0);
    CHECK(rdma_connect(a.id, NULL) == 0);
    event = next_event(second, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(event->id->channel == second && event->listen_id == listener);
    id = event->id;
    rdma_ack_cm_event(event);
    /* One that is destroyed without an answer is rejected. */
    CHECK(rdma_destroy_id(id) == 0);
    expect(first, RDMA_CM_EVENT_REJECTED);
    release(&a);
    CHECK(rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(first);
    rdma_destroy_event_channel(second);
}

/* What a program has sent arrives, although it ends at once, with everything open. */
static void left(void)
{
    enum { PIECES = 16 };
    int ports[2], port, status;
    CHECK(pipe(ports) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    struct side side = {0};
    if (child == 0) {
        CHECK(read(ports[0], &port, sizeof port) == sizeof port);
        side.channel = rdma_create_event_channel();
        prepare(&side, resolved(side.channel, port), 0);
        CHECK(rdma_connect(side.id, NULL) == 0);
        expect(side.channel, RDMA_CM_EVENT_ESTABLISHED);
        memset(side.memory, 'z', BYTES);
        struct ibv_sge sge = piece(&side, 0, BYTES);
        for (int i = 0; i < PIECES; i++)
            CHECK(post(&side, IBV_WR_SEND, IBV_SEND_SIGNALED, &sge, NULL, 0) == 0);
        for (int i = 0; i < PIECES; i++)
            CHECK(polled(side.cq).status == IBV_WC_SUCCESS);
        exit(0);
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    listening(channel, &port);
    CHECK(write(ports[1], &port, sizeof port) == sizeof port);
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    prepare(&side, event->id, 0);
    rdma_ack_cm_event(event);
    for (int i = 0; i < PIECES; i++)
        CHECK(receive(&side, i, 0, BYTES) == 0);
    CHECK(rdma_accept(side.id, NULL) == 0);
    for (int i = 0; i < PIECES; i++) {
        struct ibv_wc wc = polled(side.cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == BYTES);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A child of fork has an engine of its own, and its parent's goes on. */
static void forked(void)
{
    struct side a, b;
    int status;
    connected(&a, &b);
    CHECK(ibv_fork_init() == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        connected(&a, &b);
        struct ibv_sge sge = piece(&a, 0, 8);
        CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
        CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
        disconnected(&a, &b);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    struct ibv_sge sge = piece(&a, 0, 8);
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
    CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
    disconnected(&a, &b);
}

/* The device has a file for programs that look for one; other files are as they are. */
static void node(void)
{
    const char *file = "/dev/infiniband/sidecore-verbs0";
    struct stat about;
    errno = 0;
    CHECK(stat(file, &about) == 0 && S_ISCHR(about.st_mode));
    CHECK(access(file, F_OK) == 0 && access(file, R_OK | W_OK) == 0 && errno == 0);
    CHECK(access(file, X_OK) == -1 && errno == ENOENT);
    CHECK(stat("/dev/infiniband/sidecore-verbs1", &about) == -1 && errno == ENOENT);
    CHECK(access("/dev/infiniband/sidecore-verbs", F_OK) == -1 && errno == ENOENT);
    CHECK(stat("/", &about) == 0 && S_ISDIR(about.st_mode) && access("/", X_OK) == 0);
    const char *volatile nowhere = (const char *)8;
    CHECK(stat(nowhere, &about) == -1 && errno == EFAULT);
    CHECK(access(nowhere, F_OK) == -1 && errno == EFAULT);
}

/* Properties of the device, its port, pairs and queues; names of numbers. */
static void properties(void)
{
    node();
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex extended;
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_gid_entry entry;
    uint16_t pkey;
    CHECK(list[0]->node_type == IBV_NODE_CA && list[0]->transport_type == IBV_TRANSPORT_IB);
    CHECK(ibv_query_device(context, &attr) == 0 && attr.max_mr >= 1000000);
    /* UCX takes pairs of six pieces. */
    CHECK(attr.max_sge >= 6);
    CHECK(ibv_query_device_ex(context, NULL, &extended) == 0);
    size_t compared = offsetof(struct ibv_device_attr, phys_port_cnt);
    CHECK(memcmp(&attr, &extended.orig_attr, compared) == 0 && extended.phys_port_cnt_ex == 1);
    CHECK(ibv_query_device(NULL, &attr) == EINVAL);
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && ibv_query_port(context, 2, &port) == EINVAL);
    CHECK(port.gid_tbl_len > 0 && port.lid == 0);
    CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
    CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0) == ENODATA);
    struct ibv_gid_entry *table = calloc(port.gid_tbl_len, sizeof *table);
    CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
    CHECK(ibv_query_gid_table(context, table, port.gid_tbl_len, 0) == port.gid_tbl_len);
    for (int i = 0; i < port.gid_tbl_len; i++) {
        CHECK(ibv_query_gid(context, 1, i, &gid) == 0);
        CHECK(ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && (int)entry.gid_index == i);
        CHECK(memcmp(&entry.gid, &gid, sizeof gid) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
        CHECK(memcmp(&table[i].gid, &gid, sizeof gid) == 0);
    }
    free(table);
    CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
    CHECK(ibv_get_pkey_index(context, 1, pkey) == 0 && ibv_get_pkey_index(context, 1, 1) == -1);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    CHECK(ibv_resize_cq(cq, 20) == 0 && cq->cqe == 20 && ibv_resize_cq(cq, 0) == EINVAL);
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 10}};
    struct ibv_srq *srq = ibv_create_srq(pd, &shared);
    struct ibv_srq_attr limit = {.srq_limit = 11};
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == EINVAL);
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
    CHECK(ibv_query_srq(srq, &limit) == 0 && limit.max_wr == 10 && limit.srq_limit == 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .sq_sig_all = 1,
                                    .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 3}}, found;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr state;
    CHECK(qp && ibv_query_qp(qp, &state, IBV_QP_STATE, &found) == 0);
    CHECK(state.qp_state == IBV_QPS_RESET && found.srq == srq && found.cap.max_send_wr == 3);
    CHECK(found.sq_sig_all == 1 && found.cap.max_inline_data >= 16);
    state.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &state, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_ERR);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
    ibv_ack_async_event(&event);
    struct ibv_send_wr wr = {.wr_id = 5, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    struct ibv_wc wc = polled(cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5 && wc.qp_num == qp->qp_num);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
    CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_REJECTED), "RDMA_CM_EVENT_REJECTED") == 0);
    CHECK(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0);
    CHECK(strcmp(ibv_wc_status_str(1000), "unknown") == 0);
    CHECK(ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4 && mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
    CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && ibv_rate_to_mbps(999) == -1);
    int count;
    struct ibv_context **contexts = rdma_get_devices(&count);
    CHECK(contexts && count == 1 && contexts[0] && !contexts[1]);
    rdma_free_devices(contexts);
}

static unsigned random_state;

static unsigned draw(unsigned below)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % below;
}

/* Random operations against a model of both memories; completions come in order. */
static void sequence(void)
{
    struct side a, b;
    static char model[BYTES];
    connected(&a, &b);
    for (unsigned round = 0; round < 3000; round++) {
        unsigned bytes = 1 + draw(draw(4) ? 300 : 20000), at = draw(BYTES - bytes);
        unsigned from = draw(BYTES - bytes), kind = draw(4);
        struct ibv_sge sge = piece(&a, from, bytes);
        for (unsigned i = 0; i < bytes; i += 1 + bytes / 8)
            a.memory[from + i] = draw(256);
        if (kind == 0) {
            CHECK(receive(&b, round, at, bytes) == 0);
            CHECK(post(&a, IBV_WR_SEND, IBV_SEND_SIGNALED, &sge, NULL, 0) == 0);
            struct ibv_wc wc = polled(b.cq);
            CHECK(wc.wr_id == round && wc.byte_len == bytes && wc.status == IBV_WC_SUCCESS);
            memcpy(model + at, a.memory + from, bytes);
        } else if (kind == 1) {
            CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &b, at) == 0);
        } else {
            CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &b, at) == 0);
            memcpy(model + at, a.memory + from, bytes);
        }
        struct ibv_wc wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        /* A completed write is placed: its completion says so. */
        CHECK(memcmp(b.memory + at, model + at, bytes) == 0);
        if (kind == 1)
            CHECK(memcmp(a.memory + from, model + at, bytes) == 0);
    }
    CHECK(memcmp(b.memory, model, BYTES) == 0);
    disconnected(&a, &b);
}

struct worker {
    struct side *a, *b;
    unsigned index;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct ibv_sge sge = piece(worker->a, 64 * worker->index, 8);
    for (unsigned i = 0; i < 2000; i++)
        while (post(worker->a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, worker->b, 0))
            sched_yield();
    return NULL;
}

/* Several threads post to one pair while another one polls. */
static void threads(void)
{
    struct side a, b;
    pthread_t threads[4];
    struct worker workers[4];
    connected(&a, &b);
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){&a, &b, i};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < 4 * 2000; i++)
        CHECK(polled(a.cq).status == IBV_WC_SUCCESS);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(empty(a.cq));
    disconnected(&a, &b);
}

/* Data is copied at posting of messages and writes alone; refused work changes no copy that waits
 * to be sent. */
static void copies(void)
{
    enum { LONG = 32 << 20 };
    struct side a, b;
    connected(&a, &b);
    char *from = calloc(1, LONG), *into = malloc(LONG), first[8] = "first", last[8] = "last";
    struct ibv_mr *sent = ibv_reg_mr(a.pd, from, LONG, 0);
    struct ibv_mr *got = ibv_reg_mr(b.pd, into, LONG, IBV_ACCESS_LOCAL_WRITE);
    CHECK(from && into && sent && got);
    /* More than the sockets hold, and no receive for it: what is behind it waits. */
    struct ibv_sge sge = {(uintptr_t)from, LONG, sent->lkey};
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    struct ibv_sge copied = {(uintptr_t)first, sizeof first, 0};
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_INLINE, &copied, NULL, 0) == 0);
    static const int answered[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
                                   IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (int i = 0; i < 15; i++)
        CHECK(post(&a, answered[2 - i % 2], IBV_SEND_INLINE, &copied, &b, 0) == EINVAL);
    copied.addr = (uintptr_t)last;
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_INLINE, &copied, NULL, 0) == 0);
    struct ibv_sge room = {(uintptr_t)into, LONG, got->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &room, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(b.id->qp, &wr, &bad) == 0);
    CHECK(receive(&b, 2, 0, 8) == 0 && receive(&b, 3, 8, 8) == 0);
    for (uint64_t i = 1; i <= 3; i++) {
        struct ibv_wc wc = polled(b.cq);
        CHECK(wc.wr_id == i && wc.status == IBV_WC_SUCCESS);
    }
    CHECK(strcmp(b.memory, "first") == 0 && strcmp(b.memory + 8, "last") == 0);
    CHECK(post(&a, answered[0], IBV_SEND_INLINE, &copied, &b, 0) == EINVAL);
    CHECK(ibv_dereg_mr(sent) == 0 && ibv_dereg_mr(got) == 0);
    free(from);
    free(into);
    disconnected(&a, &b);
}

/* A peer that serves no reads, as bytes: its writes complete once TCP has them, and a read is
 * refused, also one of no bytes, as writes are confirmed by. */
static void unread(void)
{
    static const char reply[24] = "MPA ID Rep Frame\x10\x02\x00\x04";
    struct side a = {.channel = rdma_create_event_channel()};
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    char request[24];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    prepare(&a, resolved(a.channel, ntohs(address.sin_port)), 0);
    CHECK(rdma_connect(a.id, NULL) == 0);
    int peer = accept(listener, NULL, NULL);
    CHECK(recv(peer, request, sizeof request, MSG_WAITALL) == sizeof request);
    CHECK(memcmp(request, "MPA ID Req Frame", 16) == 0);
    CHECK(write(peer, reply, sizeof reply) == sizeof reply);
    expect(a.channel, RDMA_CM_EVENT_ESTABLISHED);
    struct ibv_sge sge = piece(&a, 0, 8);
    CHECK(post(&a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, &a, 0) == 0);
    struct ibv_wc wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
    CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &a, 0) == EOPNOTSUPP);
    CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, NULL, NULL, 0) == EOPNOTSUPP);
    CHECK(empty(a.cq));
    CHECK(close(peer) == 0 && close(listener) == 0);
    expect(a.channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&a);
    rdma_destroy_event_channel(a.channel);
}

/* A pair that is destroyed has ended its connection: a call that waits has nothing to wait for. */
static void ended(void)
{
    struct side a, b;
    connected(&a, &b);
    CHECK(rdma_migrate_id(a.id, NULL) == 0);
    rdma_destroy_qp(a.id);
    expect(b.channel, RDMA_CM_EVENT_DISCONNECTED);
    CHECK(rdma_disconnect(a.id) == 0 && rdma_disconnect(a.id) == 0);
    release(&b);
    CHECK(ibv_dereg_mr(a.mr) == 0 && ibv_destroy_cq(a.cq) == 0);
    CHECK(ibv_destroy_comp_channel(a.completions) == 0 && ibv_dealloc_pd(a.pd) == 0);
    CHECK(rdma_destroy_id(a.id) == 0);
    free(a.memory);
    rdma_destroy_event_channel(a.channel);
    rdma_destroy_event_channel(b.channel);
}

/* A region keeps its offsets with other rights, and has its address' with another place. */
static void moved(void)
{
    enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
    struct side a, b;
    connected(&a, &b);
    struct ibv_mr *mr = ibv_reg_mr_iova(b.pd, b.memory, 4096, 0x5000, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct side named = b;
    named.mr = mr;
    struct ibv_sge sge = piece(&a, 0, 8);
    strcpy(b.memory + 8, "stays");
    strcpy(b.memory + 8192, "moved");
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS) == 0);
    CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &named,
               0x5008 - (uintptr_t)b.memory) == 0);
    CHECK(polled(a.cq).status == IBV_WC_SUCCESS && strcmp(a.memory, "stays") == 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b.memory + 8192, 64, 0) == 0);
    CHECK(mr->addr == b.memory + 8192 && mr->length == 64);
    CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &named, 8192) == 0);
    CHECK(polled(a.cq).status == IBV_WC_SUCCESS && strcmp(a.memory, "moved") == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    disconnected(&a, &b);
}

struct poller {
    struct ibv_cq_ex *cq;
    unsigned *seen, *done;
};

static void *poll_in_steps(void *argument)
{
    struct poller *poller = argument;
    struct ibv_poll_cq_attr none = {0};
    while (__atomic_load_n(poller->done, __ATOMIC_RELAXED) < 4000) {
        int outcome = ibv_start_poll(poller->cq, &none);
        if (outcome != 0) {
            CHECK(outcome == ENOENT);
            continue;
        }
        do {
            /* What the queue shows stays, whatever the other threads do meanwhile. */
            uint64_t id = poller->cq->wr_id;
            CHECK(id < 4000 && poller->seen[id]++ == 0);
            sched_yield();
            CHECK(poller->cq->wr_id == id && poller->cq->status == IBV_WC_SUCCESS);
            CHECK(ibv_wc_read_byte_len(poller->cq) == id);
            __atomic_fetch_add(poller->done, 1, __ATOMIC_RELAXED);
        } while (ibv_next_poll(poller->cq) == 0);
        ibv_end_poll(poller->cq);
    }
    return NULL;
}

/* Several threads poll one queue in steps: each has the queue from the start to the end. */
static void pollers(void)
{
    struct side a, b;
    pthread_t threads[3];
    static unsigned seen[4000];
    unsigned done = 0;
    connected(&a, &b);
    rdma_destroy_qp(a.id);
    rdma_destroy_qp(b.id);
    struct ibv_cq_init_attr_ex queue = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(a.id->verbs, &queue);
    CHECK(cq && rdma_destroy_id(a.id) == 0 && rdma_destroy_id(b.id) == 0);
    int port;
    struct rdma_cm_id *listener = listening(b.channel, &port), *id = resolved(a.channel, port);
    struct ibv_qp_init_attr attr = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = a.cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 1,
                                            .max_send_sge = 1}};
    CHECK(rdma_create_qp(id, a.pd, &attr) == 0 && rdma_connect(id, NULL) == 0);
    struct rdma_cm_event *event = next_event(b.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *peer = event->id;
    attr.send_cq = attr.recv_cq = b.cq;
    CHECK(rdma_ack_cm_event(event) == 0 && rdma_create_qp(peer, b.pd, &attr) == 0);
    CHECK(rdma_accept(peer, NULL) == 0);
    expect(a.channel, RDMA_CM_EVENT_ESTABLISHED);
    struct poller poller = {cq, seen, &done};
    for (unsigned i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, poll_in_steps, &poller) == 0);
    for (uint64_t i = 0; i < 4000; i++) {
        struct ibv_sge sge = piece(&a, 0, i);
        struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = {(uintptr_t)b.memory, b.mr->rkey}}, *bad;
        while (ibv_post_send(id->qp, &wr, &bad) != 0)
            sched_yield();
    }
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(done == 4000);
    rdma_destroy_qp(id);
    rdma_destroy_qp(peer);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && rdma_destroy_id(listener) == 0);
}

/* A pair that the program connects itself, in the place of an identifier's. */
static void bare_of(struct side *side, int kind)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    memset(side, 0, sizeof *side);
    side->id = calloc(1, sizeof *side->id);
    side->id->verbs = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    CHECK(side->id->verbs);
    side->pd = ibv_alloc_pd(side->id->verbs);
    side->cq = ibv_create_cq(side->id->verbs, 64, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = kind,
    };
    side->id->qp = ibv_create_qp(side->pd, &attr);
    side->memory = calloc(1, BYTES);
    side->mr = ibv_reg_mr(side->pd, side->memory, BYTES,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(side->pd && side->cq && side->id->qp && side->mr);
}

static void bare(struct side *side)
{
    bare_of(side, IBV_QPT_RC);
}

static void bare_release(struct side *side)
{
    CHECK(ibv_destroy_qp(side->id->qp) == 0 && ibv_dereg_mr(side->mr) == 0);
    CHECK(ibv_destroy_cq(side->cq) == 0 && ibv_dealloc_pd(side->pd) == 0);
    CHECK(ibv_close_device(side->id->verbs) == 0);
    free(side->memory);
    free(side->id);
}

#define TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR                                                                        \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |   \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define TO_RTS                                                                        \
    (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |            \
     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

/* Attributes for all changes up to "ready to send"; the limit is four times this one, twice. */
static struct ibv_qp_attr towards(struct side *side, uint32_t number, int timeout)
{
    struct ibv_qp_attr attr = {.port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = number,
                               .rq_psn = 5, .sq_psn = 6, .timeout = timeout, .retry_cnt = 1,
                               .rnr_retry = 7, .min_rnr_timer = 12, .max_rd_atomic = 4,
                               .max_dest_rd_atomic = 4, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
    attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
    CHECK(ibv_query_gid(side->id->verbs, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    return attr;
}

static void initialised(struct side *side)
{
    struct ibv_qp_attr attr = towards(side, 0, 0);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(side->id->qp, &attr, TO_INIT) == 0);
}

static void reached(struct side *side, uint32_t number, int timeout)
{
    struct ibv_qp_attr attr = towards(side, number, timeout);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(side->id->qp, &attr, TO_RTR) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(side->id->qp, &attr, TO_RTS) == 0);
    CHECK(side->id->qp->state == IBV_QPS_RTS);
}

static void rest(int milliseconds)
{
    struct timespec pause = {0, milliseconds * 1000 * 1000};
    nanosleep(&pause, NULL);
}

/* Without librdmacm: whichever side is ready first, what it posts waits for the other one. */
static void direct(void)
{
    for (int round = 0; round < 2; round++) {
        struct side a, b;
        bare(&a);
        bare(&b);
        struct side *first = round ? &b : &a, *last = round ? &a : &b;
        initialised(&a);
        initialised(&b);
        CHECK(receive(last, 1, 0, 64) == 0 && receive(first, 2, 0, 64) == 0);
        reached(first, last->id->qp->qp_num, 15);
        strcpy(first->memory + 1000, "early");
        struct ibv_sge sge = piece(first, 1000, 6);
        CHECK(post(first, IBV_WR_SEND, IBV_SEND_SIGNALED, &sge, NULL, 0) == 0);
        CHECK(post(first, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, last, 2000) == 0);
        rest(30);
        CHECK(empty(first->cq) && empty(last->cq));
        reached(last, first->id->qp->qp_num, 20);
        struct ibv_wc wc = polled(last->cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.byte_len == 6);
        CHECK(wc.qp_num == last->id->qp->qp_num && strcmp(last->memory, "early") == 0);
        CHECK(polled(first->cq).opcode == IBV_WC_SEND);
        wc = polled(first->cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
        CHECK(strcmp(last->memory + 2000, "early") == 0);
        /* A message without a receive waits for one. */
        sge = piece(last, 2000, 6);
        CHECK(post(last, IBV_WR_SEND_WITH_IMM, 0, &sge, NULL, 0) == 0);
        CHECK(post(last, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
        wc = polled(first->cq);
        CHECK(wc.wr_id == 2 && ntohl(wc.imm_data) == 0x01020304);
        rest(10);
        CHECK(empty(first->cq) && receive(first, 3, 64, 64) == 0);
        CHECK(polled(first->cq).wr_id == 3);
        sge = piece(last, 4000, 8);
        CHECK(post(last, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, &sge, first, 64) == 0);
        CHECK(polled(last->cq).status == IBV_WC_SUCCESS);
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(ibv_query_qp(first->id->qp, &attr, IBV_QP_AV, &init) == 0);
        CHECK(attr.dest_qp_num == last->id->qp->qp_num && attr.timeout == 15 && attr.sq_psn == 6);
        CHECK(attr.qp_state == IBV_QPS_RTS && attr.ah_attr.is_global == 1);
        /* A peer that leaves is silent, as on an adapter, until there is work for it. */
        CHECK(receive(first, 4, 0, 64) == 0);
        bare_release(last);
        rest(30);
        CHECK(empty(first->cq) && first->id->qp->state == IBV_QPS_RTS);
        sge = piece(first, 0, 8);
        CHECK(post(first, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
        /* By the pair's time limit: a program that has all that it wants ends before. */
        rest(100);
        CHECK(empty(first->cq) && first->id->qp->state == IBV_QPS_RTS);
        CHECK(polled(first->cq).status == IBV_WC_RETRY_EXC_ERR);
        wc = polled(first->cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 4);
        CHECK(first->id->qp->state == IBV_QPS_ERR && empty(first->cq));
        bare_release(first);
    }
}

/* A pair that is its own peer, and one that is used again after a reset. */
static void loop(void)
{
    struct side a, b;
    bare(&a);
    initialised(&a);
    CHECK(receive(&a, 1, 0, 64) == 0);
    reached(&a, a.id->qp->qp_num, 20);
    strcpy(a.memory + 1000, "self");
    struct ibv_sge sge = piece(&a, 1000, 5);
    CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
    struct ibv_wc wc = polled(a.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && strcmp(a.memory, "self") == 0);
    CHECK(receive(&a, 2, 64, 64) == 0);
    CHECK(post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, &sge, &a, 2000) == 0);
    for (int i = 0; i < 2; i++) {
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        CHECK(wc.opcode == IBV_WC_RDMA_WRITE || wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
    }
    CHECK(strcmp(a.memory + 2000, "self") == 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(receive(&a, 3, 0, 64) == 0 && ibv_modify_qp(a.id->qp, &attr, IBV_QP_STATE) == 0);
    CHECK(empty(a.cq));
    bare(&b);
    initialised(&a);
    initialised(&b);
    CHECK(receive(&b, 4, 0, 64) == 0);
    reached(&a, b.id->qp->qp_num, 20);
    reached(&b, a.id->qp->qp_num, 20);
    CHECK(post(&a, IBV_WR_SEND, IBV_SEND_SIGNALED, &sge, NULL, 0) == 0);
    CHECK(polled(b.cq).wr_id == 4 && polled(a.cq).status == IBV_WC_SUCCESS);
    /* The program ends its own pair: everything is flushed, and the peer is silent. */
    CHECK(receive(&a, 5, 0, 64) == 0 && receive(&b, 6, 0, 64) == 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(a.id->qp, &attr, IBV_QP_STATE) == 0);
    wc = polled(a.cq);
    CHECK(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR && a.id->qp->state == IBV_QPS_ERR);
    rest(10);
    CHECK(empty(b.cq) && b.id->qp->state == IBV_QPS_RTS);
    bare_release(&a);
    bare_release(&b);
}

/* Peers that there are not: of no process, of this one, one that expects another pair, and one of
 * another address. */
static void absent(void)
{
    struct side a, b, c;
    bare(&b);
    bare(&c);
    for (int round = 0; round < 4; round++) {
        bare(&a);
        initialised(&a);
        if (round == 2) {
            initialised(&b);
            reached(&b, c.id->qp->qp_num, 20);
        }
        uint32_t own = a.id->qp->qp_num;
        uint32_t number = round == 0 ? 5 : round == 1 ? own + 100 : b.id->qp->qp_num;
        struct ibv_qp_attr attr = towards(&a, number, 8);
        if (round == 3)
            attr.ah_attr.grh.dgid.raw[15] = 77;
        attr.qp_state = IBV_QPS_RTR;
        CHECK(ibv_modify_qp(a.id->qp, &attr, TO_RTR) == 0);
        struct ibv_sge sge = piece(&a, 0, 8);
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
        CHECK(ibv_post_send(a.id->qp, &wr, &bad) == EINVAL);
        attr.qp_state = IBV_QPS_RTS;
        CHECK(ibv_modify_qp(a.id->qp, &attr, TO_RTS) == 0);
        rest(10);
        CHECK(a.id->qp->state == IBV_QPS_RTS && receive(&a, 1, 0, 64) == 0);
        CHECK(post(&a, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
        CHECK(post(&a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &b, 0) == 0);
        struct ibv_wc wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_RETRY_EXC_ERR && wc.wr_id == 7 && wc.qp_num == own);
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.opcode == IBV_WC_RDMA_READ);
        wc = polled(a.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 1 && empty(a.cq));
        CHECK(a.id->qp->state == IBV_QPS_ERR);
        bare_release(&a);
    }
    bare_release(&b);
    bare_release(&c);
}

/* Each change of state has its attributes: one fewer or one more is refused and changes nothing. */
static void changes(void)
{
    static const struct {
        int from, to, mask;
    } cases[] = {
        {IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT},
        {IBV_QPS_INIT, IBV_QPS_RTR, TO_RTR},
        {IBV_QPS_RTR, IBV_QPS_RTS, TO_RTS},
    };
    struct side a;
    bare(&a);
    struct ibv_qp *qp = a.id->qp;
    for (size_t i = 0; i < 3; i++) {
        struct ibv_qp_attr attr = towards(&a, qp->qp_num + 1, 14);
        for (int to = IBV_QPS_RESET + 1; to < IBV_QPS_ERR; to++) {
            attr.qp_state = to;
            if (to != cases[i].to && to != cases[i].from)
                CHECK(ibv_modify_qp(qp, &attr, cases[i].mask) == EINVAL);
        }
        attr.qp_state = cases[i].to;
        for (int bit = 1; bit < 1 << 25; bit <<= 1) {
            if (bit == IBV_QP_STATE || bit == IBV_QP_CUR_STATE || bit == IBV_QP_ACCESS_FLAGS ||
                bit == IBV_QP_PKEY_INDEX || bit == IBV_QP_MIN_RNR_TIMER)
                continue;
            CHECK(ibv_modify_qp(qp, &attr, cases[i].mask ^ bit) == EINVAL);
        }
        struct ibv_qp_attr wrong[10];
        for (int j = 0; j < 10; j++)
            wrong[j] = attr;
        wrong[0].port_num = wrong[1].pkey_index = 2;
        wrong[2].path_mtu = 6;
        wrong[3].dest_qp_num = 1 << 24;
        wrong[4].timeout = wrong[5].min_rnr_timer = 32;
        wrong[6].retry_cnt = wrong[7].rnr_retry = 8;
        wrong[8].max_rd_atomic = wrong[9].max_dest_rd_atomic = 129;
        int refused = 0;
        for (int j = 0; j < 10; j++) {
            static const int bits[] = {IBV_QP_PORT, IBV_QP_PKEY_INDEX, IBV_QP_PATH_MTU,
                                       IBV_QP_DEST_QPN, IBV_QP_TIMEOUT, IBV_QP_MIN_RNR_TIMER,
                                       IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC,
                                       IBV_QP_MAX_DEST_RD_ATOMIC};
            if (cases[i].mask & bits[j]) {
                CHECK(ibv_modify_qp(qp, &wrong[j], cases[i].mask) == EINVAL);
                refused++;
            }
        }
        CHECK(refused >= 2);
        if (cases[i].mask & IBV_QP_AV) {
            /* No route of a local identifier only, none of another port, none to all or nothing. */
            for (int j = 0; j < 5; j++) {
                struct ibv_qp_attr lost = attr;
                if (j == 0)
                    lost.ah_attr.is_global = 0;
                else if (j == 1)
                    lost.ah_attr.port_num = 2;
                else if (j == 2)
                    lost.ah_attr.grh.sgid_index = 200;
                else
                    memset(&lost.ah_attr.grh.dgid, j == 3 ? 0 : 0xff, 16);
                CHECK(ibv_modify_qp(qp, &lost, cases[i].mask) == EINVAL);
                CHECK(!ibv_create_ah(a.pd, &lost.ah_attr) && errno == EINVAL);
            }
            struct ibv_ah *ah = ibv_create_ah(a.pd, &attr.ah_attr);
            CHECK(ah && ibv_dealloc_pd(a.pd) == EBUSY && ibv_destroy_ah(ah) == 0);
        }
        CHECK((int)qp->state == cases[i].from);
        CHECK(ibv_modify_qp(qp, &attr, cases[i].mask) == 0 && (int)qp->state == cases[i].to);
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTR};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE) == EINVAL);
    attr.cur_qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE) == 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_ERR);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(qp, &attr, TO_INIT) == EINVAL);
    attr.qp_state = IBV_QPS_RESET;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_RESET);
    bare_release(&a);
}

/* Two processes exchange numbers over a pipe; one is killed with work under way to it. */
static void processes(void)
{
    struct {
        uint32_t number, key;
        uint64_t address;
    } own, peer;
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    int from = child ? back[0] : there[0], to = child ? there[1] : back[1];
    enum { PAIRS = 3 };
    struct side sides[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        struct side *side = &sides[i];
        bare(side);
        initialised(side);
        CHECK(receive(side, i, 0, 64) == 0);
        own.number = side->id->qp->qp_num;
        own.key = side->mr->rkey;
        own.address = (uintptr_t)side->memory;
        CHECK(write(to, &own, sizeof own) == sizeof own);
        CHECK(read(from, &peer, sizeof peer) == sizeof peer);
        CHECK(peer.number != own.number);
        reached(side, peer.number, 15);
        snprintf(side->memory + 1000, 64, "%s %d", child ? "parent" : "child", i);
        struct ibv_sge sge = piece(side, 1000, 64);
        CHECK(post(side, IBV_WR_SEND, 0, &sge, NULL, 0) == 0);
        struct ibv_wc wc = polled(side->cq);
        char expected[64];
        snprintf(expected, sizeof expected, "%s %d", child ? "child" : "parent", i);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
        CHECK(strcmp(side->memory, expected) == 0);
    }
    /* Each side sees the other's last message before the end. */
    char byte = 0;
    CHECK(write(to, &byte, 1) == 1 && read(from, &byte, 1) == 1);
    if (child == 0)
        for (;;)
            pause();
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    for (int i = 0; i < PAIRS; i++) {
        struct ibv_sge sge = piece(&sides[i], 0, 8);
        CHECK(receive(&sides[i], 9, 0, 64) == 0);
        int posted = 0;
        /* What the socket takes before the end is known is done, as far as this side knows. */
        struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
        while (wc.status == IBV_WC_SUCCESS && posted++ < 1000) {
            CHECK(post(&sides[i], IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, &sides[i], 0) == 0);
            wc = polled(sides[i].cq);
        }
        CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
        wc = polled(sides[i].cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 9);
        bare_release(&sides[i]);
    }
}

static void datagram(struct side *from, struct ibv_ah *ah, struct side *to, uint32_t key,
                     uint32_t bytes)
{
    struct ibv_sge sge = piece(from, 1000, bytes);
    struct ibv_send_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(5),
                             .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, to->id->qp->qp_num, key}}, *bad;
    CHECK(ibv_post_send(from->id->qp, &wr, &bad) == 0);
    struct ibv_wc wc = polled(from->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 7);
}

/* Datagrams: a header in front of each, lost without a receive or with another key. */
static void datagrams(void)
{
    struct side a, b, *both[] = {&a, &b};
    struct ibv_qp_attr attr = {.port_num = 1, .qkey = 0x1234};
    for (int i = 0; i < 2; i++) {
        bare_of(both[i], IBV_QPT_UD);
        struct ibv_qp *qp = both[i]->id->qp;
        int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        attr.qp_state = IBV_QPS_INIT;
        CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL);
        CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_QKEY) == 0);
        attr.qp_state = IBV_QPS_RTR;
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV) == EINVAL);
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
        attr.qp_state = IBV_QPS_RTS;
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    }
    struct ibv_qp_attr way = towards(&a, 0, 0);
    struct ibv_ah *ah = ibv_create_ah(a.pd, &way.ah_attr);
    CHECK(ah);
    strcpy(a.memory + 1000, "datagram");
    /* Lost: no receive, another key. */
    datagram(&a, ah, &b, 0x1234, 9);
    CHECK(empty(b.cq));
    CHECK(receive(&b, 1, 0, 48) == 0 && receive(&b, 2, 2000, 49) == 0);
    CHECK(receive(&b, 3, 4000, 40 + 4096) == 0);
    datagram(&a, ah, &b, 0x1235, 9);
    CHECK(empty(b.cq));
    /* One byte too short, and the last byte that fits. */
    datagram(&a, ah, &b, 0x1234, 9);
    struct ibv_wc wc = polled(b.cq);
    CHECK(wc.status == IBV_WC_LOC_LEN_ERR && wc.wr_id == 1 && b.memory[40] == 0);
    datagram(&a, ah, &b, 0x80000000, 9);
    wc = polled(b.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2 && wc.byte_len == 49);
    CHECK(wc.opcode == IBV_WC_RECV && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM));
    CHECK(wc.src_qp == a.id->qp->qp_num && ntohl(wc.imm_data) == 5);
    CHECK(strcmp(b.memory + 2040, "datagram") == 0);
    struct ibv_grh *route = (struct ibv_grh *)(b.memory + 2000);
    CHECK(memcmp(&route->sgid, &way.ah_attr.grh.dgid, 16) == 0);
    CHECK(memcmp(&route->dgid, &way.ah_attr.grh.dgid, 16) == 0);
    datagram(&a, ah, &b, 0x1234, 4096);
    wc = polled(b.cq);
    CHECK(wc.wr_id == 3 && wc.byte_len == 4136);
    CHECK(memcmp(a.memory + 1000, b.memory + 4040, 4096) == 0);
    /* Too long, of another kind, without a way. */
    struct ibv_sge sge = piece(&a, 0, 4097);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .wr.ud = {ah, b.id->qp->qp_num, 0x1234}}, *bad;
    CHECK(ibv_post_send(a.id->qp, &wr, &bad) == EINVAL && bad == &wr);
    sge.length = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    CHECK(ibv_post_send(a.id->qp, &wr, &bad) == EOPNOTSUPP);
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = NULL;
    CHECK(ibv_post_send(a.id->qp, &wr, &bad) == EINVAL);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(receive(&b, 4, 0, 64) == 0 && ibv_modify_qp(b.id->qp, &attr, IBV_QP_STATE) == 0);
    wc = polled(b.cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 4);
    CHECK(ibv_dealloc_pd(a.pd) == EBUSY && ibv_destroy_ah(ah) == 0);
    bare_release(&a);
    bare_release(&b);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"operations", operations}, {"faults", faults},   {"events", events},
        {"slots", slots},           {"misuse", misuse},   {"leaks", leaks},
        {"regions", regions},       {"killed", killed},   {"many", many},
        {"sequence", sequence},     {"threads", threads}, {"extended", extended},
        {"shared", shared},         {"memory", memory},   {"rejected", rejected},
        {"waiting", waiting},       {"rights", rights},   {"addresses", addresses},
        {"lengths", lengths},       {"left", left},       {"invalidated", invalidated},
        {"migrated", migrated},     {"forked", forked},   {"properties", properties},
        {"pollers", pollers},       {"copies", copies},   {"unread", unread},
        {"ended", ended},           {"moved", moved},     {"direct", direct},
        {"loop", loop},             {"absent", absent},   {"changes", changes},
        {"processes", processes},   {"datagrams", datagrams},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (count == 2 && strcmp(arguments[1], tests[i].name) == 0) {
            tests[i].run();
            puts("right");
            return 0;
        }
    return 2;
}
