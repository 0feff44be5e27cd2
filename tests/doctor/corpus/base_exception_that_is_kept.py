class Future:
    def run(self, work):
        try:
            self.result = work()
        except BaseException as error:
            self.error = error
