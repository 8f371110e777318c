// g++ 12 takes the empty optional in torch's PythonFutureWrapper for a value that is read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings/module.h"
#include "c10d/engines/cuda/cuda_work.h"
#include "c10d/engines/delegate/delegate_work.h"
#include "c10d/engines/hosts/host_peer_work.h"
#include "c10d/engines/native/work.h"
#include "c10d/life/exception.h"
#include "c10d/works/peer_work.h"
#include "c10d/works/work_of_many.h"

namespace py = pybind11;

namespace fastcomm {
namespace {

using torch::jit::PythonFutureWrapper;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;

/// The error of a continuation, as its future holds it: one of our errors is unchanged, so that it
/// comes out of backward() under DDP with its type; any other is in torch's words, which keep only
/// the text.
std::exception_ptr error_of_continuation(py::error_already_set& raised) {
  const py::gil_scoped_acquire gil;
  std::exception_ptr error = as_torch_error(raised.type().ptr(), raised.value().ptr());
  if (error == nullptr) {
    error = std::make_exception_ptr(std::runtime_error(
        concat("Got the following error when running the callback: ", raised.what())));
  }
  raised.restore();  // drops its references here, with the GIL
  PyErr_Clear();
  return error;
}

/// torch's Future with other threads and another order for its callbacks:
/// c10d/works/continuations.h.
///
/// C++ code that follows an operation (DDP's reducer, collect_all) gets another future, `fut`,
/// completed by a thread of its own, since callbacks of torch's futures may hang on it. Calls
/// issued by them take the communicator of the thread that asked for the future, on any thread, but
/// in no order: torch calls them as they come.
///
/// pybind11 would ask torch's class for the shared_ptr to this object, by a cast that a class
/// without virtual functions does not have; with a second such base it does not ask.
class Future : public PythonFutureWrapper, private std::enable_shared_from_this<Future> {
 public:
  using Ptr = std::shared_ptr<Future>;

  /// The future of an operation. `value` replaces the operation's own.
  static Ptr of(GroupWorkPtr work, std::optional<c10::IValue> value) {
    const py::gil_scoped_release released;
    const Continuations::Ptr& group = work->continuations();
    FuturePtr awaited = work->getFuture();
    auto seen = c10::make_intrusive<c10::ivalue::Future>(
        value ? static_cast<c10::TypePtr>(c10::PyObjectType::get()) : awaited->elementType(),
        awaited->devices());
    const auto relay = [awaited, seen, value] {
      if (awaited->hasError()) return seen->setError(awaited->exception_ptr());
      // Inline, as it is complete: it carries streams for the data that the operation left on its
      // own.
      awaited->addCallback([seen, value](c10::ivalue::Future& done) {
        seen->markCompleted(value ? *value : done.value());
      });
    };
    group->relays()->add(awaited, Continuations::here(), relay);
    auto future = std::make_shared<Future>(std::move(seen), std::move(awaited), group);
    future->work_ = std::move(work);
    future->value_ = std::move(value);
    return future;
  }

  Future(FuturePtr seen, FuturePtr awaited, std::shared_ptr<Continuations> group)
      : PythonFutureWrapper(std::move(seen)),
        awaited_(std::move(awaited)),
        group_(std::move(group)) {}

  bool done() const { return awaited_->completed(); }

  py::object wait() {
    {
      const py::gil_scoped_release released;
      if (work_ != nullptr) work_->wait();  // drives it, and sees Ctrl-C
      awaited_->wait();
    }
    return value();
  }

  py::object value() {
    const c10::IValue own = awaited_->value();  // raises the error
    return torch::jit::toPyObject(value_ ? *value_ : own);
  }

  static Ptr then(const Ptr& self, py::function function) {
    auto child = c10::make_intrusive<c10::ivalue::Future>(c10::PyObjectType::get(),
                                                          self->awaited_->devices());
    const auto finish = [child, place = Continuations::here()](const std::exception_ptr& error,
                                                               c10::IValue value) {
      const Standing as_attached(place);  // for calls that torch's futures make because of it
      if (error != nullptr) return child->setError(error);
      child->markCompleted(std::move(value));
    };
    attach(self, std::move(function), finish);
    return std::make_shared<Future>(child, child, self->group_);
  }

  static void add_done_callback(const Ptr& self, py::function function) {
    attach(self, std::move(function), [](const std::exception_ptr& error, const c10::IValue&) {
      try {
        if (error != nullptr) std::rethrow_exception(error);
      } catch (const std::exception& raised) {
        LOG(ERROR) << raised.what();
      }
    });
  }

 private:
  /// Calls `function` with `self` when its turn has come, in the attaching thread's state (grad
  /// mode, and so on), and `finish` with its result or error.
  template <class Finish>
  static void attach(const Ptr& self, py::function function, const Finish& finish) {
    const auto call = [self, function = held(std::move(function)), finish,
                       attached = at::ThreadLocalState()](c10::ivalue::Future&) {
      const at::ThreadLocalStateGuard as_attached(attached);
      c10::IValue value;
      std::exception_ptr error;
      try {
        const py::gil_scoped_acquire gil;
        value = torch::jit::toIValue((*function)(self), c10::PyObjectType::get());
      } catch (py::error_already_set& raised) {
        error = error_of_continuation(raised);
      } catch (const std::exception&) {
        error = std::current_exception();
      }
      finish(error, std::move(value));
    };
    const py::gil_scoped_release released;
    const FuturePtr awaited = self->awaited_;
    Continuations::of_this_thread(self->group_)
        ->add(awaited, Continuations::next(self->group_),
              [awaited, call] { awaited->addCallback(call); });
  }

  FuturePtr awaited_;
  std::shared_ptr<Continuations> group_;
  GroupWorkPtr work_;  // nullptr for the result of a continuation
  std::optional<c10::IValue> value_;
};

/// pybind11 gives Python a work with its own type only if it knows the class itself.
template <class Work>
void bind_work(py::module_& module, const char* name) {
  py::class_<Work, c10::intrusive_ptr<Work>, GroupWork>(module, name);
}

}  // namespace

void bind_futures(py::module_& module) {
  py::class_<Future, std::shared_ptr<Future>, PythonFutureWrapper>(module, "Future")
      .def("done", &Future::done)
      .def("wait", &Future::wait)
      .def("value", &Future::value)
      .def("then", &Future::then)
      .def("add_done_callback", &Future::add_done_callback);
  py::class_<GroupWork, GroupWorkPtr, ::c10d::Work>(module, "GroupWork")
      .def("get_future", [](const GroupWorkPtr& work) { return Future::of(work, std::nullopt); });
  bind_work<NativeWork>(module, "NativeWork");
  bind_work<PeerWork>(module, "PeerWork");
  bind_work<HostPeerWork>(module, "HostPeerWork");
  bind_work<WorkOfMany>(module, "WorkOfMany");
  bind_work<DelegateWork>(module, "DelegateWork");
#if defined(FC_DEVICES)
  bind_work<CudaWork>(module, "_CudaWork");
#endif
  // With another value than the operation's own.
  module.def("future_of", [](const GroupWorkPtr& work, const py::object& value) {
    return Future::of(work, torch::jit::toIValue(value, c10::PyObjectType::get()));
  });
}

}  // namespace fastcomm
