//go:build rdma && linux && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

// verbs.h hides these two behind macros: without them their names are the functions.
#undef ibv_query_port
#undef ibv_reg_mr

// The symbols and the version of each. Some names exist in an older version too, for
// programs of before 2008, with other structures behind them: the version is asked
// for. create_comp_channel and destroy_comp_channel never got a newer one.
#define NEEDED(X) \
	X(ibv_get_device_list, "IBVERBS_1.1") \
	X(ibv_free_device_list, "IBVERBS_1.1") \
	X(ibv_get_device_name, "IBVERBS_1.1") \
	X(ibv_open_device, "IBVERBS_1.1") \
	X(ibv_close_device, "IBVERBS_1.1") \
	X(ibv_query_device, "IBVERBS_1.1") \
	X(ibv_query_port, "IBVERBS_1.1") \
	X(ibv_query_gid, "IBVERBS_1.1") \
	X(ibv_alloc_pd, "IBVERBS_1.1") \
	X(ibv_dealloc_pd, "IBVERBS_1.1") \
	X(ibv_reg_mr, "IBVERBS_1.1") \
	X(ibv_dereg_mr, "IBVERBS_1.1") \
	X(ibv_create_comp_channel, "IBVERBS_1.0") \
	X(ibv_destroy_comp_channel, "IBVERBS_1.0") \
	X(ibv_create_cq, "IBVERBS_1.1") \
	X(ibv_destroy_cq, "IBVERBS_1.1") \
	X(ibv_get_cq_event, "IBVERBS_1.1") \
	X(ibv_ack_cq_events, "IBVERBS_1.1") \
	X(ibv_create_qp, "IBVERBS_1.1") \
	X(ibv_modify_qp, "IBVERBS_1.1") \
	X(ibv_query_qp, "IBVERBS_1.1") \
	X(ibv_destroy_qp, "IBVERBS_1.1") \
	X(ibv_get_async_event, "IBVERBS_1.1") \
	X(ibv_ack_async_event, "IBVERBS_1.1")

// What older libraries lack.
#define OPTIONAL(X) \
	X(ibv_reg_mr_iova2, "IBVERBS_1.8") \
	X(_ibv_query_gid_ex, "IBVERBS_1.11") \
	X(ibv_reg_dmabuf_mr, "IBVERBS_1.12")

#define DECLARE(name, version) static __typeof__(name) *p_##name;
NEEDED(DECLARE)
OPTIONAL(DECLARE)

static pthread_mutex_t load_mu = PTHREAD_MUTEX_INITIALIZER;
static void *library;

#define MUST(name, version) \
	if (!(p_##name = (__typeof__(p_##name))dlvsym(h, #name, version))) { \
		snprintf(why, n, "libibverbs.so.1 has no " #name " of version " version); \
		dlclose(h); \
		goto out; \
	}
#define MAY(name, version) p_##name = (__typeof__(p_##name))dlvsym(h, #name, version);

// kv_load opens the library, once for the life of the process: its drivers cannot be
// unloaded. A process that found none may try again.
int kv_load(char *why, int n) {
	int rc = -1;
	pthread_mutex_lock(&load_mu);
	if (library) {
		rc = 0;
		goto out;
	}
	void *h = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		snprintf(why, n, "%s", dlerror());
		goto out;
	}
	NEEDED(MUST)
	OPTIONAL(MAY)
	library = h;
	rc = 0;
out:
	pthread_mutex_unlock(&load_mu);
	return rc;
}

int kv_has_gid_ex(void) { return p__ibv_query_gid_ex != 0; }

struct ibv_device **kv_list(int *n) { return p_ibv_get_device_list(n); }
void kv_free_list(struct ibv_device **l) { p_ibv_free_device_list(l); }
const char *kv_name(struct ibv_device *d) { return p_ibv_get_device_name(d); }
struct ibv_context *kv_open(struct ibv_device *d) { return p_ibv_open_device(d); }
int kv_close(struct ibv_context *c) { return p_ibv_close_device(c) ? errno : 0; }

int kv_query_device(struct ibv_context *c, kv_device *out) {
	struct ibv_device_attr a;
	int rc = p_ibv_query_device(c, &a);
	if (rc) return rc;
	*out = (kv_device){
		.guid = be64toh(a.node_guid), .max_mr_bytes = a.max_mr_size, .ports = a.phys_port_cnt, .max_qp = a.max_qp,
		.max_qp_wr = a.max_qp_wr, .max_cq = a.max_cq, .max_cqe = a.max_cqe, .max_mr = a.max_mr,
	};
	memcpy(out->firmware, a.fw_ver, sizeof out->firmware);
	out->firmware[sizeof out->firmware - 1] = 0;
	return 0;
}

int kv_query_port(struct ibv_context *c, int port, kv_port *out) {
	struct ibv_port_attr a;
	memset(&a, 0, sizeof a);
	// What the macro does: a library of before port_attr grew knows only the old symbol.
	struct verbs_context *v = verbs_get_ctx_op(c, query_port);
	int rc = v ? v->query_port(c, port, &a, sizeof a) : p_ibv_query_port(c, port, (struct _compat_ibv_port_attr *)&a);
	if (rc) return rc;
	*out = (kv_port){
		.state = a.state, .physical = a.phys_state, .max_mtu = a.max_mtu, .active_mtu = a.active_mtu, .link_layer = a.link_layer,
		.gids = a.gid_tbl_len, .max_message = a.max_msg_sz, .lid = a.lid, .sm_lid = a.sm_lid, .subnet_timeout = a.subnet_timeout,
	};
	return 0;
}

// kv_query_gid leaves type and ifindex 0 when the library is too old to tell.
int kv_query_gid(struct ibv_context *c, int port, int i, kv_gid *out) {
	memset(out, 0, sizeof *out);
	if (!p__ibv_query_gid_ex) {
		union ibv_gid g;
		if (p_ibv_query_gid(c, port, i, &g)) return errno ? errno : EIO;
		memcpy(out->raw, g.raw, 16);
		return 0;
	}
	struct ibv_gid_entry e;
	int rc = p__ibv_query_gid_ex(c, port, i, &e, 0, sizeof e);
	if (rc) return rc;
	memcpy(out->raw, e.gid.raw, 16);
	out->type = e.gid_type;
	out->ifindex = e.ndev_ifindex;
	return 0;
}

struct ibv_pd *kv_alloc_pd(struct ibv_context *c) { return p_ibv_alloc_pd(c); }
int kv_dealloc_pd(struct ibv_pd *p) { return p_ibv_dealloc_pd(p); }

struct ibv_mr *kv_reg(struct ibv_pd *p, void *mem, size_t n, unsigned access) {
	// What the macro does: optional flags (relaxed ordering) need the newer call, and
	// may be left out where it does not exist.
	if (access & IBV_ACCESS_OPTIONAL_RANGE) {
		if (p_ibv_reg_mr_iova2) return p_ibv_reg_mr_iova2(p, mem, n, (uintptr_t)mem, access);
		access &= ~IBV_ACCESS_OPTIONAL_RANGE;
	}
	return p_ibv_reg_mr(p, mem, n, (int)access);
}

struct ibv_mr *kv_reg_dmabuf(struct ibv_pd *p, uint64_t off, size_t n, uint64_t iova, int fd, int access) {
	if (!p_ibv_reg_dmabuf_mr) {
		errno = ENOSYS;
		return 0;
	}
	return p_ibv_reg_dmabuf_mr(p, off, n, iova, fd, access);
}

int kv_dereg(struct ibv_mr *m) { return p_ibv_dereg_mr(m); }

static int nonblock(int fd) {
	int f = fcntl(fd, F_GETFL);
	return f < 0 || fcntl(fd, F_SETFL, f | O_NONBLOCK) ? errno : 0;
}

struct ibv_comp_channel *kv_create_channel(struct ibv_context *c) {
	struct ibv_comp_channel *ch = p_ibv_create_comp_channel(c);
	if (!ch) return 0;
	int rc = nonblock(ch->fd);
	if (!rc) return ch;
	p_ibv_destroy_comp_channel(ch);
	errno = rc;
	return 0;
}

int kv_destroy_channel(struct ibv_comp_channel *ch) { return p_ibv_destroy_comp_channel(ch); }

struct ibv_cq *kv_create_cq(struct ibv_context *c, int depth, struct ibv_comp_channel *ch) {
	return p_ibv_create_cq(c, depth, 0, ch, 0);
}

int kv_destroy_cq(struct ibv_cq *cq) { return p_ibv_destroy_cq(cq); }
int kv_arm(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

// kv_take_cq_event takes one event, or returns EAGAIN. It acknowledges at once:
// destroying a queue waits for all events to be acknowledged.
int kv_take_cq_event(struct ibv_comp_channel *ch) {
	struct ibv_cq *cq;
	void *context;
	if (p_ibv_get_cq_event(ch, &cq, &context)) return errno ? errno : EIO;
	p_ibv_ack_cq_events(cq, 1);
	return 0;
}

// kv_poll returns how many completions it took, or a negative errno.
int kv_poll(struct ibv_cq *cq, kv_done *out, int n) {
	struct ibv_wc wc[KV_BATCH];
	if (n > KV_BATCH) n = KV_BATCH;
	int k = ibv_poll_cq(cq, n, wc);
	if (k < 0) return errno ? -errno : -EIO;
	for (int i = 0; i < k; i++)
		out[i] = (kv_done){
			.id = wc[i].wr_id, .status = wc[i].status, .op = wc[i].opcode, .vendor = wc[i].vendor_err, .bytes = wc[i].byte_len,
			.imm = ntohl(wc[i].imm_data), .qp = wc[i].qp_num, .flags = wc[i].wc_flags,
		};
	return k;
}

struct ibv_qp *kv_create_qp(struct ibv_pd *p, struct ibv_cq *s, struct ibv_cq *r, uint32_t sends, uint32_t recvs, uint32_t *inline_bytes) {
	struct ibv_qp_init_attr a = {
		.send_cq = s,
		.recv_cq = r,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = *inline_bytes},
	};
	struct ibv_qp *q = p_ibv_create_qp(p, &a);
	if (q) *inline_bytes = a.cap.max_inline_data;
	return q;
}

int kv_destroy_qp(struct ibv_qp *q) { return p_ibv_destroy_qp(q); }

int kv_qp_init(struct ibv_qp *q, int port, unsigned access) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = port, .qp_access_flags = access};
	return p_ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int kv_qp_connect(struct ibv_qp *q, const kv_path *p) {
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = p->mtu,
		.dest_qp_num = p->dest_qp,
		.rq_psn = p->dest_psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = p->min_rnr_timer,
		.ah_attr = {.dlid = p->dlid, .sl = p->sl, .is_global = p->global, .port_num = p->port},
	};
	if (p->global) {
		a.ah_attr.grh.sgid_index = p->sgid_index;
		a.ah_attr.grh.hop_limit = p->hop_limit;
		a.ah_attr.grh.traffic_class = p->traffic_class;
		memcpy(a.ah_attr.grh.dgid.raw, p->dgid, 16);
	}
	int rc = p_ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc) return rc;
	struct ibv_qp_attr b = {
		.qp_state = IBV_QPS_RTS, .timeout = p->timeout, .retry_cnt = p->retries, .rnr_retry = p->rnr_retries, .sq_psn = p->psn, .max_rd_atomic = 1,
	};
	return p_ibv_modify_qp(q, &b, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC);
}

int kv_qp_fail(struct ibv_qp *q) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return p_ibv_modify_qp(q, &a, IBV_QP_STATE);
}

int kv_qp_reset(struct ibv_qp *q) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	return p_ibv_modify_qp(q, &a, IBV_QP_STATE);
}

int kv_qp_state(struct ibv_qp *q, int *state) {
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int rc = p_ibv_query_qp(q, &a, IBV_QP_STATE, &i);
	if (!rc) *state = a.qp_state;
	return rc;
}

// kv_post_send sets posted to how many were taken, also when one was not.
int kv_post_send(struct ibv_qp *q, const kv_work *w, int n, int *posted) {
	struct ibv_send_wr wr[KV_BATCH], *bad = 0;
	struct ibv_sge sge[KV_BATCH];
	*posted = 0;
	if (n < 1 || n > KV_BATCH) return EINVAL;
	memset(wr, 0, sizeof wr[0] * n);
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){w[i].local, w[i].bytes, w[i].lkey};
		wr[i].wr_id = w[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : 0;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = w[i].bytes ? 1 : 0;
		wr[i].opcode = w[i].op;
		wr[i].send_flags = w[i].flags;
		wr[i].imm_data = htonl(w[i].imm);
		wr[i].wr.rdma.remote_addr = w[i].remote;
		wr[i].wr.rdma.rkey = w[i].rkey;
	}
	int rc = ibv_post_send(q, wr, &bad);
	*posted = rc && bad ? (int)(bad - wr) : n;
	return rc;
}

int kv_post_recv(struct ibv_qp *q, const kv_work *w, int n, int *posted) {
	struct ibv_recv_wr wr[KV_BATCH], *bad = 0;
	struct ibv_sge sge[KV_BATCH];
	*posted = 0;
	if (n < 1 || n > KV_BATCH) return EINVAL;
	memset(wr, 0, sizeof wr[0] * n);
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){w[i].local, w[i].bytes, w[i].lkey};
		wr[i].wr_id = w[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : 0;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = w[i].bytes ? 1 : 0;
	}
	int rc = ibv_post_recv(q, wr, &bad);
	*posted = rc && bad ? (int)(bad - wr) : n;
	return rc;
}

int kv_async_nonblock(struct ibv_context *c) { return nonblock(c->async_fd); }

// kv_take_event takes one asynchronous event, or returns EAGAIN.
int kv_take_event(struct ibv_context *c, kv_event *out) {
	struct ibv_async_event e;
	memset(out, 0, sizeof *out);
	if (p_ibv_get_async_event(c, &e)) return errno ? errno : EIO;
	out->type = e.event_type;
	switch (e.event_type) {
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = e.element.port_num;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		// It cannot be gone: destroying it waits for the acknowledgement below.
		out->qp = e.element.qp->qp_num;
		break;
	default:
		break;
	}
	p_ibv_ack_async_event(&e);
	return 0;
}
