/// kvcast._core: the program's commands as a Python function. What is friendly about the package is
/// in kvcast/__init__.py.
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <signal.h>

#include "cli/frame/build_facts.h"
#include "cli/frame/capture.h"
#include "cli/frame/command_line.h"
#include "cli/frame/interrupt_guard.h"
#include "model/base/error.h"

namespace py = pybind11;

namespace kvcast::python {
namespace {

using cli::Capture;
using cli::InterruptGuard;
using nlohmann::ordered_json;
using reports::SweepColumn;

/// Objects are made by `type`, a subclass of dict.
py::object to_python(const ordered_json& value, const py::object& type) {
  switch (value.type()) {
    case ordered_json::value_t::boolean: return py::bool_(value.get<bool>());
    case ordered_json::value_t::number_integer: return py::int_(value.get<std::int64_t>());
    case ordered_json::value_t::number_unsigned: return py::int_(value.get<std::uint64_t>());
    case ordered_json::value_t::number_float: {
      // As in the program's text, where it is null.
      const double number = value.get<double>();
      if (!std::isfinite(number)) return py::none();
      return py::float_(number);
    }
    case ordered_json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"));
    }
    case ordered_json::value_t::array: {
      py::list list(value.size());
      for (std::size_t i = 0; i < value.size(); ++i) list[i] = to_python(value[i], type);
      return list;
    }
    case ordered_json::value_t::object: {
      py::object object = type();
      for (const auto& [key, part] : value.items()) {
        if (PyDict_SetItem(object.ptr(), py::str(key).ptr(), to_python(part, type).ptr()) != 0) {
          throw py::error_already_set();
        }
      }
      return object;
    }
    default: return py::none();
  }
}

/// An array that owns the numbers.
template <typename Number>
py::array array_of(std::vector<Number>&& numbers) {
  auto* const kept = new std::vector<Number>(std::move(numbers));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<Number>*>(p); });
  return py::array_t<Number>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

/// numpy 2 moved the fields of its types: pybind11 before 2.12 makes arrays of it that repeat their
/// first number. The version then, else "".
std::string unknown_numpy() {
  constexpr bool knows_numpy_2 = PYBIND11_VERSION_MAJOR > 2 || PYBIND11_VERSION_MINOR >= 12;
  const std::string version = py::str(py::module_::import("numpy").attr("__version__"));
  return knows_numpy_2 || std::stoi(version) < 2 ? "" : version;
}

/// {name: float64 array, or (int32 array of indices, words)}
py::dict columns_of(reports::SweepColumns&& table) {
  py::dict columns;
  for (SweepColumn& column : table.columns) {
    if (column.is_number) {
      columns[py::str(column.name)] = array_of(std::move(column.numbers));
    } else {
      columns[py::str(column.name)] =
          py::make_tuple(array_of(std::move(column.codes)), column.words);
    }
  }
  return columns;
}

std::atomic<void (*)(int)> pythons_handler{nullptr};

void on_interrupt(int signal) {
  interrupt_wanted = true;
  InterruptGuard::interrupted = true;
  if (void (*handler)(int) = pythons_handler.load()) handler(signal);
}

/// Ctrl-C ends the commands that run, where Python's own handler is there to say so in the end.
/// Python calls handlers on the main thread alone, so other threads leave them as they are.
class InterruptWatch {
 public:
  explicit InterruptWatch(bool is_main_thread) {
    struct sigaction now {};
    if (!is_main_thread || ::sigaction(SIGINT, nullptr, &now) != 0) return;
    if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler == SIG_DFL ||
        now.sa_handler == SIG_IGN || now.sa_handler == on_interrupt) {
      return;
    }
    interrupt_wanted = false;
    InterruptGuard::interrupted = false;
    pythons_handler = now.sa_handler;
    before_ = now;
    now.sa_handler = on_interrupt;
    is_set_ = ::sigaction(SIGINT, &now, nullptr) == 0;
  }
  ~InterruptWatch() {
    if (!is_set_) return;
    ::sigaction(SIGINT, &before_, nullptr);
    interrupt_wanted = false;
    InterruptGuard::interrupted = false;
  }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  bool is_set_ = false;
  struct sigaction before_ {};
};

struct Types {
  py::object error;
  py::object run_error;
};

[[noreturn]] void raise(const py::object& type, const std::string& line) {
  PyErr_SetString(type.ptr(), line.c_str());
  throw py::error_already_set();
}

/// (JSON or None, columns of a sweep or None, text, [(line, is_warning)])
py::tuple run(const std::vector<std::string>& words, const py::object& object_type,
              const Types& types) {
  const py::module_ threading = py::module_::import("threading");
  if (!words.empty() && words.front() == "sweep") {
    if (const std::string version = unknown_numpy(); !version.empty()) {
      raise(types.run_error, "numpy: got " + version +
                                 ", expected a version below 2, or a build with "
                                 "pybind11 2.12 (pip install .)");
    }
  }
  const bool is_main = threading.attr("current_thread")().is(threading.attr("main_thread")());
  Capture capture;
  try {
    const InterruptWatch watch(is_main);
    const py::gil_scoped_release released;
    cli::run_program(words);
  } catch (const Interrupted& e) {
    // Python's handler has noted the signal too: what it raises is the exception, as a rule.
    if (PyErr_CheckSignals() != 0) PyErr_Clear();
    raise(py::reinterpret_borrow<py::object>(PyExc_KeyboardInterrupt), e.line);
  } catch (const Error& e) {
    raise(e.fault() == Fault::Request ? types.error : types.run_error, e.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    raise(types.run_error, e.what());
  }
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  py::list messages;
  for (const Capture::Message& m : capture.messages) {
    messages.append(py::make_tuple(m.line, m.is_warning));
  }
  py::object table = py::none();
  if (capture.table) {
    table = columns_of(std::move(*capture.table));
  }
  return py::make_tuple(to_python(capture.document, object_type), table, capture.text, messages);
}

/// {"simulate prefill": {"--devices": 1}}: how many values a flag takes, 2 for several.
py::dict flags() {
  py::dict all;
  for (const auto& [command, of_command] : cli::flags_of_commands()) {
    py::dict flags;
    for (const auto& [flag, takes] : of_command) flags[py::str(flag)] = static_cast<int>(takes);
    all[py::str(command)] = flags;
  }
  return all;
}

}  // namespace
}  // namespace kvcast::python

PYBIND11_MODULE(_core, m) {
  using namespace kvcast::python;
  kvcast::cli::InterruptGuard::is_hosted = true;
  m.def(
      "run",
      [](const std::vector<std::string>& words, const py::object& object_type,
         const py::object& error, const py::object& run_error) {
        return run(words, object_type, Types{error, run_error});
      },
      py::arg("words"), py::arg("object_type"), py::arg("error"), py::arg("run_error"));
  m.def("flags", &flags);
  m.def("build_facts", &kvcast::cli::build_facts);
}
