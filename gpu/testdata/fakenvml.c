// A library that stands in for libnvidia-ml.so.1 in tests: two GPUs, of which the second
// is cut by MIG. STATE is the path of a file whose letters break things: L: the first GPU
// is lost; H: the driver hangs; F: nothing of their memory is free; X: it reports Xid 48 of the first GPU, once. With OLD it
// lacks what old drivers lack. TOTAL and FREE are the bytes of memory of a GPU; an instance
// has half of them.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef TOTAL
#define TOTAL 1000
#define FREE 600
#endif

typedef int ret;
typedef struct device { int index, part; } *dev;

static struct device devices[2] = {{0, 0}, {1, 0}}, parts[2] = {{1, 1}, {1, 2}};

static int broken(char what) {
	char text[64] = {0};
	FILE *f = fopen(STATE, "r");
	if (f == NULL)
		return 0;
	if (fread(text, 1, sizeof text - 1, f) == 0)
		text[0] = 0;
	fclose(f);
	return strchr(text, what) != NULL;
}

ret nvmlInit_v2(void) { return 0; }
ret nvmlShutdown(void) { return 0; }
ret nvmlSystemGetDriverVersion(char *v, unsigned n) { snprintf(v, n, "575.57.08"); return 0; }
ret nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = &devices[i]; return 0; }

ret nvmlDeviceGetUUID(dev d, char *s, unsigned n) {
	if (d->part)
		snprintf(s, n, "MIG-%d", d->part);
	else
		snprintf(s, n, "GPU-%d", d->index);
	return 0;
}

ret nvmlDeviceGetName(dev d, char *s, unsigned n) {
	snprintf(s, n, d->part ? "NVIDIA H200 MIG 3g.71gb" : "NVIDIA H200");
	return 0;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };

ret nvmlDeviceGetPciInfo_v3(dev d, struct pci *p) {
	memset(p, 0, sizeof *p);
	p->bus = d->index ? 0x5e : 0x3b;
	return 0;
}

ret nvmlDeviceGetMemoryInfo(dev d, unsigned long long *m) {
	while (broken('H'))
		usleep(10000);
	if (d->index == 0 && broken('L'))
		return 15;
	m[0] = TOTAL, m[1] = broken('F') ? 0 : FREE, m[2] = m[0] - m[1];
	if (d->part)
		m[0] /= 2, m[1] /= 2, m[2] /= 2;
	return 0;
}

ret nvmlDeviceGetTemperature(dev d, int sensor, unsigned *t) { *t = 50 + d->index; return 0; }

#ifdef OLD
ret nvmlDeviceGetCurrentClocksThrottleReasons(dev d, unsigned long long *bits) { *bits = 32; return 0; }
#else
ret nvmlDeviceGetCurrentClocksEventReasons(dev d, unsigned long long *bits) { *bits = d->index ? 0 : 4 | 64 | 128; return 0; }
ret nvmlDeviceGetTemperatureThreshold(dev d, int kind, unsigned *t) { *t = kind ? 87 : 92; return kind < 2 ? 0 : 3; }
ret nvmlDeviceGetTotalEccErrors(dev d, int kind, int counter, unsigned long long *n) { *n = counter ? 7 : 2; return kind == 1 ? 0 : 3; }
ret nvmlDeviceGetRemappedRows(dev d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
	*corr = *unc = 0, *pending = d->index == 0, *failed = 0;
	return 0;
}
ret nvmlDeviceGetRetiredPagesPendingStatus(dev d, int *pending) { *pending = 0; return 3; }
ret nvmlDeviceGetPersistenceMode(dev d, int *mode) { *mode = 1; return 0; }
ret nvmlDeviceGetMigMode(dev d, unsigned *now, unsigned *later) { *now = *later = d->index; return 0; }
ret nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *n) { *n = 7; return 0; }
ret nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *part) {
	if (i != 0 && i != 2)
		return 6;
	*part = &parts[i / 2];
	return 0;
}

struct event { dev device; unsigned long long type, data; unsigned gi, ci; };

ret nvmlEventSetCreate(void **set) { *set = devices; return 0; }
ret nvmlEventSetFree(void *set) { return 0; }
ret nvmlDeviceRegisterEvents(dev d, unsigned long long types, void *set) { return types == 8 ? 0 : 3; }
ret nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms) {
	static int told;
	if (!told && broken('X')) {
		told = 1;
		memset(e, 0, sizeof *e);
		e->device = &devices[0], e->type = 8, e->data = 48;
		return 0;
	}
	usleep(1000);
	return 10;
}
// Its newer form is looked up, the older one must be there to say that events are known.
ret nvmlEventSetWait(void *set, struct event *e, unsigned ms) { return nvmlEventSetWait_v2(set, e, ms); }
#endif
