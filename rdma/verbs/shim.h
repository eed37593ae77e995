//go:build rdma && linux && cgo

// What verbs.go needs of libibverbs, flattened: no bit fields, unions or byte orders
// reach Go. Functions that return int return 0 or an errno; those that return a
// pointer return NULL and set errno.
#ifndef KEVLARD_VERBS_SHIM_H
#define KEVLARD_VERBS_SHIM_H

#include <infiniband/verbs.h>
#include <stdint.h>

enum { KV_BATCH = 64 }; // as maxBatch in limits.go

// One work request of at most one piece of local memory; Work in work.go has the
// same layout.
typedef struct {
	uint64_t id, local, remote;
	uint32_t bytes, lkey, rkey, imm, op, flags;
} kv_work;

// One completion; rawCompletion in verbs.go has the same layout.
typedef struct {
	uint64_t id;
	uint32_t status, op, vendor, bytes, imm, qp, flags, pad;
} kv_done;

typedef struct {
	uint32_t state, physical, max_mtu, active_mtu, link_layer, gids, max_message, lid, sm_lid, subnet_timeout;
} kv_port;

typedef struct {
	uint64_t guid, max_mr_bytes;
	uint32_t ports, max_qp, max_qp_wr, max_cq, max_cqe, max_mr;
	char firmware[64];
} kv_device;

typedef struct {
	uint8_t raw[16];
	uint32_t type, ifindex;
} kv_gid;

// Where a queue pair's peer is, and how long to try.
typedef struct {
	uint8_t dgid[16];
	uint32_t port, global, sgid_index, hop_limit, traffic_class, dlid, sl;
	uint32_t mtu, dest_qp, psn, dest_psn;
	uint32_t min_rnr_timer, timeout, retries, rnr_retries;
} kv_path;

typedef struct {
	uint32_t type, port, qp;
} kv_event;

int kv_load(char *why, int n);
int kv_has_gid_ex(void);

struct ibv_device **kv_list(int *n);
void kv_free_list(struct ibv_device **l);
const char *kv_name(struct ibv_device *d);
struct ibv_context *kv_open(struct ibv_device *d);
int kv_close(struct ibv_context *c);
int kv_query_device(struct ibv_context *c, kv_device *out);
int kv_query_port(struct ibv_context *c, int port, kv_port *out);
int kv_query_gid(struct ibv_context *c, int port, int i, kv_gid *out);

struct ibv_pd *kv_alloc_pd(struct ibv_context *c);
int kv_dealloc_pd(struct ibv_pd *p);
struct ibv_mr *kv_reg(struct ibv_pd *p, void *mem, size_t n, unsigned access);
struct ibv_mr *kv_reg_dmabuf(struct ibv_pd *p, uint64_t off, size_t n, uint64_t iova, int fd, int access);
int kv_dereg(struct ibv_mr *m);

struct ibv_comp_channel *kv_create_channel(struct ibv_context *c);
int kv_destroy_channel(struct ibv_comp_channel *ch);
struct ibv_cq *kv_create_cq(struct ibv_context *c, int depth, struct ibv_comp_channel *ch);
int kv_destroy_cq(struct ibv_cq *cq);
int kv_arm(struct ibv_cq *cq);
int kv_take_cq_event(struct ibv_comp_channel *ch);
int kv_poll(struct ibv_cq *cq, kv_done *out, int n);

struct ibv_qp *kv_create_qp(struct ibv_pd *p, struct ibv_cq *s, struct ibv_cq *r, uint32_t sends, uint32_t recvs, uint32_t *inline_bytes);
int kv_destroy_qp(struct ibv_qp *q);
int kv_qp_init(struct ibv_qp *q, int port, unsigned access);
int kv_qp_connect(struct ibv_qp *q, const kv_path *p);
int kv_qp_fail(struct ibv_qp *q);
int kv_qp_reset(struct ibv_qp *q);
int kv_qp_state(struct ibv_qp *q, int *state);
int kv_post_send(struct ibv_qp *q, const kv_work *w, int n, int *posted);
int kv_post_recv(struct ibv_qp *q, const kv_work *w, int n, int *posted);

int kv_async_nonblock(struct ibv_context *c);
int kv_take_event(struct ibv_context *c, kv_event *out);

#endif
