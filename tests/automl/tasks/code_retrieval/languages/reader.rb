#!/usr/bin/env ruby
# frozen_string_literal: true
def first(x) = x + 1

# A secret module.
module Readers
  # A secret class.
  class Reader < Base
    ##
    # Closes a secret reader,
    # and says so.
    #
    # More secret words.
    # @param x secret
    # rubocop:disable Metrics
    def close(x = 1)
      # secret
      y = "# kept #{x}" + '# kept' + :sym.to_s # secret
      y.each { |z| z } # secret
    end # secret

    # Private, and secret.
    private def self.open
      go
    end

    x = 1 # secret
    def plain; x; end

=begin
secret
=end
    def block; 1; end

    def empty
      # secret
    end
  end
end
