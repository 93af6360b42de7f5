// Matrix products of single precision, block by block through torch's own brgemm.
//
// brgemm (ATen/native/CPUBlas.h) is oneDNN's kernel for a product whose matrices are stored by
// rows; where oneDNN has none for the processor, it is the BLAS that torch was built with. Here a
// product is cut into blocks, for threads and for caches.

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace at::native::cpublas {
void brgemm(
    int64_t rows, int64_t columns, int64_t depth,
    int64_t left_stride, int64_t right_stride, int64_t result_stride,
    bool accumulate, const float* left, const float* right, float* result, bool is_vnni);
}

namespace {

// The largest blocks that are transposed; products.py chooses none larger.
constexpr int64_t LARGEST_SIDE = 64;
constexpr int64_t LARGEST_DEPTH = 384;
constexpr int64_t TILE = 16;

thread_local float left_block[LARGEST_SIDE * LARGEST_DEPTH];
thread_local float right_block[LARGEST_DEPTH * LARGEST_SIDE];

// Where a matrix lies: an element is at offset + batch * batch_stride + row * row_stride
// + column * column_stride from the tensor's data, in elements.
struct Place {
    int64_t offset, batch_stride, row_stride, column_stride;

    int64_t at(int64_t batch, int64_t row, int64_t column) const {
        return offset + batch * batch_stride + row * row_stride + column * column_stride;
    }
};

// The fields of products.Plan, in their order.
struct Plan {
    int64_t threads, batches, rows, columns, depth;
    int64_t row_block, column_block, panel, depth_block;
    int64_t left_transposed, right_transposed, has_bias;
    Place left, right, result, bias;
};

// result[column * result_stride + row] = matrix[row * matrix_stride + column]
void transpose(
    int64_t rows, int64_t columns, const float* matrix, int64_t matrix_stride, float* result,
    int64_t result_stride
) {
    for (int64_t row = 0; row < rows; row += TILE) {
        for (int64_t column = 0; column < columns; column += TILE) {
            const float* from = matrix + row * matrix_stride + column;
            float* to = result + column * result_stride + row;
            if (row + TILE <= rows && column + TILE <= columns) {
                float tile[TILE][TILE];
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < TILE; j++) tile[i][j] = from[i * matrix_stride + j];
                for (int j = 0; j < TILE; j++)
                    for (int i = 0; i < TILE; i++) to[j * result_stride + i] = tile[i][j];
                continue;
            }
            const int64_t height = std::min(TILE, rows - row);
            const int64_t width = std::min(TILE, columns - column);
            for (int64_t i = 0; i < height; i++)
                for (int64_t j = 0; j < width; j++)
                    to[j * result_stride + i] = from[i * matrix_stride + j];
        }
    }
}

struct Operands {
    const float *left, *right, *bias;
    float* result;
};

// Write the bias to a block of the result.
void start(
    const Plan& plan, const Operands& on, int64_t batch, int64_t top, int64_t first, int64_t rows,
    int64_t columns
) {
    for (int64_t row = 0; row < rows; row++) {
        const float* from = on.bias + plan.bias.at(batch, top + row, first);
        float* to = on.result + plan.result.at(batch, top + row, first);
        const int64_t stride = plan.bias.column_stride;
        if (stride == 1) {
            std::memcpy(to, from, columns * sizeof(float));
        } else {
            for (int64_t column = 0; column < columns; column++) to[column] = from[column * stride];
        }
    }
}

// One block of the result. What is stored by columns is transposed first, a block of the left
// matrix once for all columns of the result's, one of the right matrix for all its rows.
void block(const Plan& plan, const Operands& on, int64_t batch, int64_t top, int64_t first) {
    const int64_t rows = std::min(plan.row_block, plan.rows - top);
    const int64_t columns = std::min(plan.column_block, plan.columns - first);
    if (plan.has_bias) start(plan, on, batch, top, first, rows, columns);
    for (int64_t level = 0; level < plan.depth; level += plan.depth_block) {
        const int64_t depth = std::min(plan.depth_block, plan.depth - level);
        const float* left = on.left + plan.left.at(batch, top, level);
        int64_t left_stride = plan.left.row_stride;
        if (plan.left_transposed) {
            transpose(depth, rows, left, plan.left.column_stride, left_block, depth);
            left = left_block;
            left_stride = depth;
        }
        for (int64_t column = 0; column < columns; column += plan.panel) {
            const int64_t width = std::min(plan.panel, columns - column);
            const float* right = on.right + plan.right.at(batch, level, first + column);
            int64_t right_stride = plan.right.row_stride;
            if (plan.right_transposed) {
                transpose(width, depth, right, plan.right.column_stride, right_block, width);
                right = right_block;
                right_stride = width;
            }
            at::native::cpublas::brgemm(
                rows, width, depth, left_stride, right_stride, plan.result.row_stride,
                plan.has_bias || level > 0, left, right,
                on.result + plan.result.at(batch, top, first + column), false);
        }
    }
}

// As many threads as the plan has, or fewer: a worker that was forked may have but one.
int threads_for(const Plan& plan) {
#ifdef _OPENMP
    return std::min<int>(plan.threads, omp_get_max_threads());
#else
    return 1;
#endif
}

void multiply(const Plan& plan, const Operands& on) {
    const int threads = threads_for(plan);
#pragma omp parallel for collapse(3) num_threads(threads) if (threads > 1)
    for (int64_t batch = 0; batch < plan.batches; batch++)
        for (int64_t top = 0; top < plan.rows; top += plan.row_block)
            for (int64_t first = 0; first < plan.columns; first += plan.column_block)
                block(plan, on, batch, top, first);
}

void* (*data_pointer)(PyObject*);

float* data_of(PyObject* tensor) { return static_cast<float*>(data_pointer(tensor)); }

// run(plan, left, right, result) or run(plan, bias, left, right, result)
PyObject* run(PyObject*, PyObject* const* values, Py_ssize_t count) {
    char* bytes;
    Py_ssize_t length;
    if (count < 4 || count > 5) return PyErr_Format(PyExc_TypeError, "got %zd arguments", count);
    if (PyBytes_AsStringAndSize(values[0], &bytes, &length) < 0) return nullptr;
    Plan plan;
    if (length != sizeof plan) return PyErr_Format(PyExc_ValueError, "a plan of %zd bytes", length);
    std::memcpy(&plan, bytes, sizeof plan);
    if (plan.has_bias != count - 4) return PyErr_Format(PyExc_ValueError, "a bias too few or many");
    try {
        const float* bias = plan.has_bias ? data_of(values[1]) : nullptr;
        PyObject* const* rest = values + 1 + plan.has_bias;
        multiply(plan, {data_of(rest[0]), data_of(rest[1]), bias, data_of(rest[2])});
    } catch (const std::exception& error) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyObject* connect(PyObject*, PyObject* address) {
    void* pointer = PyLong_AsVoidPtr(address);
    if (pointer == nullptr) return nullptr;
    data_pointer = reinterpret_cast<decltype(data_pointer)>(pointer);
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"connect", connect, METH_O, ""},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL, ""},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernels", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject* module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
