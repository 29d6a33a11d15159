/* Two endpoints of one process over the kernel's loopback, their receives from one shared context: messages, then each
 * atomic that the provider offers. The argument is the provider's name. */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                            \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_cntr *writes, *reads;
static struct fid_ep *shared;

static struct fid_ep *endpoint(struct fi_info *info) {
    struct fid_ep *ep;
    CHECK(fi_endpoint(domain, info, &ep, NULL) == 0);
    CHECK(fi_ep_bind(ep, &eq->fid, 0) == 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV) == 0);
    CHECK(fi_ep_bind(ep, &writes->fid, FI_WRITE) == 0);
    CHECK(fi_ep_bind(ep, &reads->fid, FI_READ) == 0);
    CHECK(fi_ep_bind(ep, &shared->fid, 0) == 0);
    CHECK(fi_enable(ep) == 0);
    return ep;
}

static uint32_t event(struct fi_eq_cm_entry *entry) {
    uint32_t event = 0;
    ssize_t got;
    long tries;
    for (tries = 0; tries < 20000000; tries++) {
        struct fi_cq_entry none;
        fi_cq_read(cq, &none, 0); /* manual progress */
        got = fi_eq_read(eq, &event, entry, sizeof *entry, 0);
        if (got != -FI_EAGAIN) {
            CHECK(got >= (ssize_t)sizeof *entry);
            return event;
        }
    }
    CHECK(!"an event comes");
    return 0;
}

static struct fi_cq_data_entry done(void) {
    struct fi_cq_data_entry entry;
    ssize_t got;
    long tries;
    for (tries = 0; tries < 20000000; tries++) {
        got = fi_cq_read(cq, &entry, 1);
        if (got != -FI_EAGAIN) {
            CHECK(got == 1);
            return entry;
        }
    }
    CHECK(!"a completion comes");
    return entry;
}

int main(int count, char **arguments) {
    static uint64_t words[4];
    static char text[64], into[3][64];
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_pep *pep;
    struct fid_mr *mr;
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fi_eq_cm_entry entry;
    struct fid_ep *client, *server;
    struct fi_cq_data_entry completion;
    struct fi_atomic_attr query;
    char name[64];
    size_t length = sizeof name, at, most;
    uint64_t operand, compare, result, pair[2], key, base;

    CHECK(count == 2);
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type = FI_EP_MSG;
    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    hints->rx_attr->size = 4096; /* as ofi_rxm asks for them */
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info) == 0);
    CHECK(info->caps & FI_ATOMIC);
    CHECK(info->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT);
    CHECK(info->domain_attr->max_ep_srx_ctx > 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL) == 0);
    CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0);
    CHECK(fi_cntr_open(domain, &cntr_attr, &writes, NULL) == 0);
    CHECK(fi_cntr_open(domain, &cntr_attr, &reads, NULL) == 0);
    CHECK(fi_srx_context(domain, info->rx_attr, &shared, NULL) == 0);
    CHECK(fi_passive_ep(fabric, info, &pep, NULL) == 0);
    CHECK(fi_pep_bind(pep, &eq->fid, 0) == 0 && fi_listen(pep) == 0);
    CHECK(fi_getname(&pep->fid, name, &length) == 0);
    CHECK(fi_mr_reg(domain, words, sizeof words, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &mr,
                    NULL) == 0);
    key = fi_mr_key(mr);
    base = (uint64_t)(uintptr_t)words;

    client = endpoint(info);
    CHECK(fi_connect(client, name, NULL, 0) == 0);
    CHECK(event(&entry) == FI_CONNREQ);
    server = endpoint(entry.info);
    fi_freeinfo(entry.info);
    CHECK(fi_accept(server, NULL, 0) == 0);
    CHECK(event(&entry) == FI_CONNECTED && event(&entry) == FI_CONNECTED);

    /* Both endpoints' messages go into the receives of one context, in its order. */
    for (at = 0; at < 3; at++)
        CHECK(fi_recv(shared, into[at], sizeof into[at], NULL, FI_ADDR_UNSPEC, into[at]) == 0);
    CHECK(fi_send(shared, text, 1, NULL, 0, NULL) == -FI_EINVAL);
    strcpy(text, "to the server");
    CHECK(fi_inject(client, text, sizeof text, 0) == 0);
    completion = done();
    CHECK(completion.op_context == into[0] && completion.len == sizeof text);
    CHECK((completion.flags & FI_RECV) && strcmp(into[0], text) == 0);
    strcpy(text, "to the client");
    CHECK(fi_inject(server, text, sizeof text, 0) == 0);
    completion = done();
    CHECK(completion.op_context == into[1] && strcmp(into[1], text) == 0);
    CHECK(fi_cancel(&shared->fid, into[2]) == 0);
    CHECK(fi_cancel(&shared->fid, into[2]) == -FI_ENOENT);

    /* Without a result. */
    most = 0;
    CHECK(fi_atomicvalid(client, FI_UINT64, FI_SUM, &most) == 0 && most >= 2);
    CHECK(fi_atomicvalid(client, FI_UINT64, FI_MIN, &most) == -FI_EOPNOTSUPP);
    CHECK(fi_atomicvalid(client, FI_UINT32, FI_SUM, &most) == -FI_EOPNOTSUPP);
    CHECK(fi_atomicvalid(client, FI_UINT64, FI_ATOMIC_READ, &most) == -FI_EOPNOTSUPP);
    CHECK(fi_query_atomic(domain, FI_INT64, FI_CSWAP, &query, FI_COMPARE_ATOMIC) == 0);
    CHECK(query.size == 8 && query.count == most);
    words[0] = 40;
    words[1] = 0xff00;
    pair[0] = 2;
    pair[1] = 1;
    CHECK(fi_atomic(client, pair, 2, NULL, 0, base, key, FI_UINT64, FI_SUM, &key) == 0);
    completion = done();
    CHECK(completion.op_context == &key && (completion.flags & FI_ATOMIC));
    CHECK(words[0] == 42 && words[1] == 0xff01);
    operand = 0x0ff0;
    CHECK(fi_atomic(client, &operand, 1, NULL, 0, base + 8, key, FI_UINT64, FI_BOR, NULL) == 0);
    done();
    CHECK(words[1] == 0xfff1);
    CHECK(fi_atomic(client, &operand, 1, NULL, 0, base + 8, key, FI_INT64, FI_BAND, NULL) == 0);
    done();
    CHECK(words[1] == 0x0ff0);
    operand = 0x1111;
    CHECK(fi_atomic(client, &operand, 1, NULL, 0, base + 8, key, FI_INT64, FI_BXOR, NULL) == 0);
    done();
    CHECK(words[1] == 0x1ee1);
    CHECK(fi_inject_atomic(client, &operand, 1, 0, base + 8, key, FI_UINT64, FI_ATOMIC_WRITE) == 0);

    /* With the word as it was; behind what was injected. */
    result = 0;
    CHECK(fi_fetch_atomic(client, NULL, 1, NULL, &result, NULL, 0, base + 8, key, FI_UINT64,
                          FI_ATOMIC_READ, NULL) == 0);
    completion = done();
    CHECK(result == 0x1111 && (completion.flags & FI_READ));
    operand = 5;
    CHECK(fi_fetch_atomic(server, &operand, 1, NULL, &result, NULL, 0, base, key, FI_INT64, FI_SUM,
                          NULL) == 0);
    done();
    CHECK(result == 42 && words[0] == 47);

    /* Compared. */
    compare = 47;
    operand = 100;
    CHECK(fi_compare_atomic(client, &operand, 1, NULL, &compare, NULL, &result, NULL, 0, base, key,
                            FI_UINT64, FI_CSWAP, NULL) == 0);
    done();
    CHECK(result == 47 && words[0] == 100);
    CHECK(fi_compare_atomic(client, &operand, 1, NULL, &compare, NULL, &result, NULL, 0, base, key,
                            FI_UINT64, FI_CSWAP, NULL) == 0);
    done();
    CHECK(result == 100 && words[0] == 100);
    compare = 0xf0;
    operand = 0xab;
    CHECK(fi_compare_atomic(client, &operand, 1, NULL, &compare, NULL, &result, NULL, 0, base, key,
                            FI_UINT64, FI_MSWAP, NULL) == 0);
    done();
    CHECK(result == 100 && words[0] == (0xa0 | (100 & 0x0f)));
    CHECK(fi_cntr_read(writes) == 5 && fi_cntr_read(reads) == 5);

    CHECK(fi_close(&client->fid) == 0 && fi_close(&server->fid) == 0);
    CHECK(fi_close(&shared->fid) == 0 && fi_close(&pep->fid) == 0 && fi_close(&mr->fid) == 0);
    CHECK(fi_close(&cq->fid) == 0 && fi_close(&writes->fid) == 0 && fi_close(&reads->fid) == 0);
    CHECK(fi_close(&domain->fid) == 0 && fi_close(&eq->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    puts("right");
    return 0;
}
