// A backend library whose one device says that it is a GPU and computes on the CPU, with
// the kernels of the program that loads it. Its memory is not the host's as far as ggml is
// told, copies on a stream are done only when the stream is waited for, and flash attention
// is there for heads of 64 only. KEVLARD_FAKEGPU_REFUSES names an operation that it can't
// compute. With it the whole way to a GPU is run where there is none.
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

struct stream {
	ggml_backend_t cpu;
	std::vector<std::function<void()>> waiting;
};

ggml_backend_buffer_type_t cpu_buft() { return ggml_backend_cpu_buffer_type(); }
ggml_backend_dev_t cpu_dev() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

extern ggml_backend_device the_device;
extern ggml_backend_buffer_type the_buft;
extern ggml_backend_reg the_reg;

const char *buft_name(ggml_backend_buffer_type_t) { return "FAKE0"; }
ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
	ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(cpu_buft(), size);
	if (b != nullptr)
		b->buft = buft;
	return b;
}
size_t buft_alignment(ggml_backend_buffer_type_t) { return ggml_backend_buft_get_alignment(cpu_buft()); }

void drain(stream *s) {
	for (auto &f : s->waiting)
		f();
	s->waiting.clear();
}

const char *backend_name(ggml_backend_t) { return "FAKE0"; }
void backend_free(ggml_backend_t b) {
	auto *s = (stream *)b->context;
	drain(s);
	ggml_backend_free(s->cpu);
	delete s;
	delete b;
}
void backend_set(ggml_backend_t b, ggml_tensor *t, const void *data, size_t off, size_t size) {
	((stream *)b->context)->waiting.push_back([=] { memcpy((char *)t->data + off, data, size); });
}
void backend_get(ggml_backend_t b, const ggml_tensor *t, void *data, size_t off, size_t size) {
	((stream *)b->context)->waiting.push_back([=] { memcpy(data, (const char *)t->data + off, size); });
}
void backend_synchronize(ggml_backend_t b) { drain((stream *)b->context); }
ggml_status backend_compute(ggml_backend_t b, ggml_cgraph *g, int) {
	auto *s = (stream *)b->context;
	drain(s);
	ggml_backend_cpu_set_n_threads(s->cpu, 1);
	return ggml_backend_graph_compute(s->cpu, g);
}

const char *dev_name(ggml_backend_dev_t) { return "FAKE0"; }
const char *dev_about(ggml_backend_dev_t) { return "a GPU that is none"; }
void dev_memory(ggml_backend_dev_t, size_t *free, size_t *total) { *free = *total = 1ull << 32; }
enum ggml_backend_dev_type dev_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
void dev_props(ggml_backend_dev_t, ggml_backend_dev_props *p) {
	memset(p, 0, sizeof *p);
	p->name = "FAKE0";
	p->description = "a GPU that is none";
	p->id = "0";
	p->device_id = "0000:3b:00.0";
	p->library = "FAKE";
	p->type = GGML_BACKEND_DEVICE_TYPE_GPU;
	p->memory_free = p->memory_total = 1ull << 32;
}
ggml_backend_t dev_init(ggml_backend_dev_t dev, const char *) {
	static ggml_guid guid = {0x4b, 0x56, 0x4c};
	auto *b = new ggml_backend();
	b->guid = &guid;
	b->iface.get_name = backend_name;
	b->iface.free = backend_free;
	b->iface.set_tensor_async = backend_set;
	b->iface.get_tensor_async = backend_get;
	b->iface.synchronize = backend_synchronize;
	b->iface.graph_compute = backend_compute;
	b->device = dev;
	b->context = new stream{ggml_backend_cpu_init(), {}};
	return b;
}
ggml_backend_buffer_type_t dev_buft(ggml_backend_dev_t) { return &the_buft; }
bool dev_supports_op(ggml_backend_dev_t, const ggml_tensor *op) {
	if (op->op == GGML_OP_FLASH_ATTN_EXT && op->src[0]->ne[0] != 64)
		return false;
	const char *refused = getenv("KEVLARD_FAKEGPU_REFUSES");
	if (refused != nullptr && strcmp(refused, ggml_op_desc(op)) == 0)
		return false;
	return ggml_backend_dev_supports_op(cpu_dev(), op);
}
bool dev_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) { return buft == &the_buft; }

const char *reg_name(ggml_backend_reg_t) { return "FAKE"; }
size_t reg_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t reg_get(ggml_backend_reg_t, size_t) { return &the_device; }
void *reg_proc(ggml_backend_reg_t, const char *) { return nullptr; }

ggml_backend_reg the_reg = {GGML_BACKEND_API_VERSION, {reg_name, reg_count, reg_get, reg_proc}, nullptr};

ggml_backend_device make_device() {
	ggml_backend_device d{};
	d.iface.get_name = dev_name;
	d.iface.get_description = dev_about;
	d.iface.get_memory = dev_memory;
	d.iface.get_type = dev_type;
	d.iface.get_props = dev_props;
	d.iface.init_backend = dev_init;
	d.iface.get_buffer_type = dev_buft;
	d.iface.supports_op = dev_supports_op;
	d.iface.supports_buft = dev_supports_buft;
	d.reg = &the_reg;
	return d;
}
ggml_backend_device the_device = make_device();

ggml_backend_buffer_type make_buft() {
	ggml_backend_buffer_type t{};
	t.iface.get_name = buft_name;
	t.iface.alloc_buffer = buft_alloc;
	t.iface.get_alignment = buft_alignment;
	t.device = &the_device;
	return t;
}
ggml_backend_buffer_type the_buft = make_buft();

} // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) { return &the_reg; }
