class Future:
    def run(self, work):
        try:
            self.result = work.read()
        except BaseException as error:
            self.error = error

    def run_without_traceback(self, work):
        try:
            self.result = work.read()
        except BaseException as error:
            self.error = error.with_traceback(None)

    def run_for(self, request, work):
        try:
            return work.read(), None
        except BaseException as error:  # not: GL211
            request.log(f"failed: {error}", str(error))
            return None, error
